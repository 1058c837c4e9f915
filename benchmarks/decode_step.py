"""Whole forwards of the native backend against the machine's floors, in process.

    python -m benchmarks.decode_step [--threads 2] [--dtype bf16] [--quantization int8] [--json]

Random weights in the shape of SmolLM2-135M. Decode: batches at one context. Prefill: one prompt, last row's
logits. Floors: every weight and every cached token read once at the read bandwidth; every product at the
matrix rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass

import torch

from benchmarks.machine import FloorMeter, Floors, seconds
from engine.kernels.cpu.backend import CpuBackend
from engine.kernels.threads import usable_physical_cores
from engine.models.backend import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.weights import LayerWeights, ModelWeights

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192

SMOLLM2_135M = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    max_position_embeddings=MAX_MODEL_LEN,
    tie_word_embeddings=True,
)


@dataclass(frozen=True)
class Step:
    """``num_requests`` requests, each with ``new_tokens`` tokens at the end of ``context``."""

    num_requests: int
    context: int
    new_tokens: int = 1

    @property
    def name(self) -> str:
        kind = "decode" if self.new_tokens == 1 else "prefill"
        return f"{kind} {self.num_requests} x {self.new_tokens}, context {self.context}"

    @property
    def visible(self) -> int:
        """Pairs of query and key over all requests."""
        return self.num_requests * sum(range(self.context - self.new_tokens + 1, self.context + 1))


@dataclass(frozen=True)
class Result:
    step: str
    ms: float
    best_ms: float
    memory_floor_ms: float
    compute_floor_ms: float
    ratio: float
    """Median over the larger floor: 1.0 is the machine's limit."""
    gflop_s: float


STEPS = (
    Step(1, 320),
    Step(4, 320),
    Step(16, 320),
    Step(32, 320),
    Step(32, 2048),
    Step(1, 512, 512),
    Step(1, 3000, 3000),
)


def random_weights(config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Weights of the right shapes; values do not matter to the time."""

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) * 0.02).to(dtype)

    c, ones = config, torch.ones(config.hidden_size, dtype=dtype)
    layers = tuple(
        LayerWeights(
            input_norm=ones,
            qkv=draw(c.q_size + 2 * c.kv_size, c.hidden_size),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            o=draw(c.hidden_size, c.q_size),
            post_norm=ones,
            gate_up=draw(2 * c.intermediate_size, c.hidden_size),
            down=draw(c.hidden_size, c.intermediate_size),
        )
        for _ in range(c.num_layers)
    )
    embed = draw(c.vocab_size, c.hidden_size)
    return ModelWeights(c, embed, layers, ones, embed)


def batch_of(step: Step, num_blocks: int, vocab_size: int) -> ForwardBatch:
    """The step's inputs; blocks are scattered over the whole cache."""
    width = -(-step.context // BLOCK_SIZE)
    table = (torch.randperm(num_blocks - 1)[: step.num_requests * width] + 1).view(step.num_requests, width)
    positions = torch.arange(step.context - step.new_tokens, step.context)
    slots = table[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    tokens = step.num_requests * step.new_tokens
    starts = torch.arange(0, tokens + 1, step.new_tokens, dtype=torch.int32)
    return ForwardBatch(
        input_ids=torch.randint(vocab_size, (tokens,)),
        positions=positions.repeat(step.num_requests),
        query_start_loc=starts,
        seq_lens=torch.full((step.num_requests,), step.context, dtype=torch.int32),
        block_table=table.int().contiguous(),
        slot_mapping=slots.flatten(),
        logits_indices=(starts[1:] - 1).long(),
        max_query_len=step.new_tokens,
        max_seq_len=step.context,
    )


def step_costs(config: ModelConfig, step: Step, weight_bytes: float, kv_bytes: float) -> tuple[float, float]:
    """Bytes that must be read and floating-point operations that must be done."""
    c = config
    inner = c.num_layers * c.hidden_size * (c.q_size + 2 * c.kv_size + c.q_size + 3 * c.intermediate_size)
    head = c.hidden_size * c.vocab_size
    num_bytes = (inner + head) * weight_bytes
    num_bytes += step.num_requests * step.context * c.kv_bytes_per_token(1) * kv_bytes
    flop = 2.0 * (inner * step.num_requests * step.new_tokens + head * step.num_requests)
    flop += 4.0 * c.num_layers * c.q_size * step.visible
    return num_bytes, flop


def measure(
    backend: CpuBackend, step: Step, batch: ForwardBatch, meter: FloorMeter, repeats: int, weight_bytes: float
) -> Result:
    backend.forward(batch)
    meter.clear()
    times = []
    for _ in range(repeats):
        meter.sample()
        backend.forward(batch)  # the meter's matrices have just swept the caches: not the state between steps
        times.append(seconds(lambda: backend.forward(batch)) * 1e3)
    floors: Floors = meter.floors()
    num_bytes, flop = step_costs(SMOLLM2_135M, step, weight_bytes, backend.dtype.itemsize)
    memory, compute = floors.memory_ms(num_bytes), floors.compute_ms(flop, backend.dtype)
    median = statistics.median(times)
    return Result(
        step.name, median, min(times), memory, compute, median / max(memory, compute), flop / median / 1e6
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_physical_cores())
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtype = DTYPES[args.dtype]
    num_blocks = 2 + max(s.num_requests * -(-s.context // BLOCK_SIZE) for s in STEPS)
    backend = CpuBackend(
        random_weights(SMOLLM2_135M, dtype), MAX_MODEL_LEN, BLOCK_SIZE, args.quantization, args.threads
    )
    backend.allocate_kv(num_blocks)
    backend.fill_kv(0.01)
    meter = FloorMeter(args.threads)
    results = []
    for step in STEPS:
        batch = batch_of(step, num_blocks, SMOLLM2_135M.vocab_size)
        weight_bytes = 1 if args.quantization == "int8" else dtype.itemsize
        r = measure(backend, step, batch, meter, args.repeats, weight_bytes)
        results.append(r)
        if not args.json:
            print(
                f"{r.step:34} {r.ms:9.2f} ms (best {r.best_ms:8.2f})   "
                f"floors: memory {r.memory_floor_ms:8.2f}, compute {r.compute_floor_ms:8.2f}   "
                f"{r.ratio:5.2f}x   {r.gflop_s:6.0f} GFLOP/s",
                flush=True,
            )
    if args.json:
        print(
            json.dumps(
                {
                    "threads": args.threads,
                    "dtype": args.dtype,
                    "quantization": args.quantization,
                    "instruction_set": backend.instruction_set,
                    "floors": asdict(meter.floors()),
                    "steps": [asdict(r) for r in results],
                }
            )
        )


if __name__ == "__main__":
    main()
