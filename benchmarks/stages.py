"""Where the time of one forward goes: each kind of stage, summed over the layers, and how long threads waited
at its end for each other.

    python -m benchmarks.stages [--steps 1x256x256,32x320x1] [--threads 2] [--dtype bf16] [--json]

A step is REQUESTSxCONTEXTxNEW_TOKENS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

from benchmarks.decode_step import (
    BLOCK_SIZE,
    DTYPES,
    MAX_MODEL_LEN,
    SMOLLM2_135M,
    Step,
    batch_of,
    random_weights,
)
from engine.kernels.cpu.backend import CpuBackend
from engine.kernels.threads import usable_physical_cores


@dataclass(frozen=True)
class Stage:
    """Medians over forwards, in ms."""

    name: str
    ms: float
    waited_ms: float
    """Mean over threads: at the end of the stage, for the others."""


@dataclass(frozen=True)
class Forward:
    step: str
    ms: float
    stages: list[Stage]


def parse_step(text: str) -> Step:
    try:
        requests, context, new = (int(part) for part in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: REQUESTSxCONTEXTxNEW_TOKENS") from None
    if not 1 <= new <= context <= MAX_MODEL_LEN or requests < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: 1 <= NEW_TOKENS <= CONTEXT <= {MAX_MODEL_LEN}")
    return Step(requests, context, new)


def measure(backend: CpuBackend, step: Step, num_blocks: int, repeats: int) -> Forward:
    batch = batch_of(step, num_blocks, SMOLLM2_135M.vocab_size)
    backend.forward(batch)
    totals: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        begin = time.monotonic_ns()
        backend.forward(batch)
        totals.append((time.monotonic_ns() - begin) / 1e6)
        one: dict[str, tuple[float, float]] = {}
        previous = begin
        for name, ended, waited in backend.stage_times():
            ms, waited_ms = one.get(name, (0.0, 0.0))
            one[name] = (
                ms + (ended - previous) / 1e6,
                waited_ms + waited / 1e6 / backend.num_threads,
            )
            previous = ended
        for name, pair in one.items():
            times.setdefault(name, []).append(pair)
    stages = [
        Stage(name, statistics.median(ms for ms, _ in pairs), statistics.median(w for _, w in pairs))
        for name, pairs in times.items()
    ]
    return Forward(step.name, statistics.median(totals), stages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", default="1x256x256,1x3000x3000,1x320x1,32x320x1")
    parser.add_argument("--threads", type=int, default=usable_physical_cores())
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        steps = [parse_step(text) for text in args.steps.split(",")]
    except argparse.ArgumentTypeError as error:
        parser.error(f"--steps {error}")
    num_blocks = 2 + max(s.num_requests * -(-s.context // BLOCK_SIZE) for s in steps)
    weights = random_weights(SMOLLM2_135M, DTYPES[args.dtype])
    backend = CpuBackend(weights, MAX_MODEL_LEN, BLOCK_SIZE, args.quantization, args.threads)
    backend.time_stages()
    backend.allocate_kv(num_blocks)
    backend.fill_kv(0.01)
    forwards = [measure(backend, step, num_blocks, args.repeats) for step in steps]
    if args.json:
        print(json.dumps({"threads": args.threads, "forwards": [asdict(f) for f in forwards]}))
        return
    for forward in forwards:
        print(f"{forward.step}: {forward.ms:.2f} ms")
        for stage in forward.stages:
            share = stage.ms / forward.ms
            print(f"  {stage.name:10} {stage.ms:9.3f} ms  {share:6.1%}   waited {stage.waited_ms:7.3f} ms")


if __name__ == "__main__":
    main()
