"""Engine steps as shares of their floors: decode with and without graphs, prefill, chunks, gaps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.shapes import (
    FAKE_SHAPES,
    SHAPES,
    decode_floor,
    layer_parameters,
    prefill_floor,
    random_weights,
)
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.device.runtime import DeviceRuntime
from engine.models.config import ModelConfig
from engine.plan import NewRequest, StepPlan
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=None, seed=0)


class Engine:
    """A model of random weights behind the device executor, driven by plans made here."""

    def __init__(
        self,
        bench: Bench,
        config: ModelConfig,
        runtime: DeviceRuntime,
        *,
        max_num_seqs: int,
        context: int,
        max_model_len: int,
    ) -> None:
        from engine.kernels.triton.backend import TritonBackend

        self.bench, self.config, self.runtime = bench, config, runtime
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.blocks_each = -(-context // BLOCK_SIZE)
        self.backend = TritonBackend(
            random_weights(config, bench.device, bench.dtype),
            max_model_len,
            BLOCK_SIZE,
            device=bench.device,
            max_num_seqs=max_num_seqs,
        )

    def executor(self, budget: int, sizes: Sequence[int]) -> DeviceExecutor:
        settings = DeviceSettings(self.max_num_seqs, self.max_model_len, BLOCK_SIZE, budget, tuple(sizes))
        self.backend.key_caches, self.backend.value_caches = [], []  # the old ones go before the new come
        executor = DeviceExecutor(
            self.runtime, self.backend, self.max_num_seqs * self.blocks_each + 1, settings
        )
        for cache in (*self.backend.key_caches, *self.backend.value_caches):
            cache.normal_()  # zeros draw less power
        return executor

    def entering(self, index: int, tokens: int, computed: int) -> NewRequest:
        """A request whose blocks begin at its own place; a long one takes its neighbours' too."""
        first = 1 + index * self.blocks_each
        count = max(self.blocks_each, -(-(tokens + 1) // BLOCK_SIZE))
        vocab = self.config.vocab_size
        return NewRequest(
            f"r{index}",
            [(7 * index + position) % vocab for position in range(tokens)],
            tokens,
            GREEDY,
            (),
            list(range(first, first + count)),
            computed,
        )


def step_plan(
    step: int, shares: dict[str, tuple[int, int]], samples: Sequence[str], entering: Sequence[NewRequest] = ()
) -> StepPlan:
    """``shares``: (computed, scheduled) by request."""
    return StepPlan(
        step_id=step,
        new_requests=list(entering),
        new_block_ids={},
        num_scheduled_tokens={name: scheduled for name, (_, scheduled) in shares.items()},
        num_computed_tokens={name: computed for name, (computed, _) in shares.items()},
        samples=list(samples),
        finished_request_ids=[],
        preempted_request_ids=[],
    )


def decode_plans(engine: Engine, batch: int, context: int, steps: int) -> list[StepPlan]:
    """``batch`` requests with ``context`` tokens each decode ``steps`` tokens."""
    names = [f"r{index}" for index in range(batch)]
    entering = [engine.entering(index, context, context - 1) for index in range(batch)]
    return [
        step_plan(step, dict.fromkeys(names, (context - 1 + step, 1)), names, entering if step == 0 else ())
        for step in range(steps)
    ]


def step_ms(bench: Bench, executor: DeviceExecutor, plans: Sequence[StepPlan], skip: int = 4) -> float:
    """Median time from one step's tokens to the next's, steps queued one ahead as the engine does."""
    stamps = []
    begun = executor.begin(plans[0])
    for plan in plans[1:]:
        following = executor.begin(plan)
        executor.finish(begun)
        stamps.append(time.perf_counter())
        begun = following
    executor.finish(begun)
    bench.synchronize()
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    return statistics.median(gaps[skip:] or gaps) * 1e3


def measure_steps(bench: Bench, name: str) -> Iterator[tuple[str, Any]]:
    """Rows of decode and prefill in the shape called ``name``; in one shape each, the gaps between decode
    steps and the chunk_size sweep.
    """
    config = (FAKE_SHAPES if bench.fake else SHAPES)[name]
    batches, context, extra = ((1, 2), 32, 16) if bench.fake else ((1, 64), 4096, 128)
    if bench.seconds_left < 30:
        bench.notes.append("left out, no time")
        return
    if not _fits(bench, config, max(batches) * (context + extra)):
        bench.notes.append("left out, the device's memory is too small")
        return
    engine = Engine(
        bench,
        config,
        _runtime(bench),
        max_num_seqs=max(batches),
        context=context + extra,
        max_model_len=64 if bench.fake else 8192 + 256,
    )
    budget = 32 if bench.fake else 8192
    for graphs in (True, False):
        executor = engine.executor(budget, batches if graphs else ())
        for batch in batches:
            executor.reset()
            ms = step_ms(bench, executor, decode_plans(engine, batch, context, 3 if bench.fake else 40))
            cost = decode_floor(config, batch, context, bench.dtype.itemsize)
            row = bench.share("decode step", f"{name} batch {batch} context {context}", ms, *cost)
            yield "steps", {**row, "graphs": graphs}
        if graphs and (bench.fake or name == "llama-3.1-8b"):
            yield "gaps", _gaps(bench, engine, executor, max(batches), context)
    for row in _prefills(bench, engine, executor, name):
        yield "steps", row
    if bench.fake or name == "qwen3-0.6b":
        for row in _chunks(bench, engine):
            yield "chunks", row


def _runtime(bench: Bench) -> DeviceRuntime:
    if bench.fake:
        from engine.executor.device.fake import FakeRuntime

        return FakeRuntime()
    from engine.executor.device.cuda_runtime import CudaRuntime

    return CudaRuntime(bench.device)


def _fits(bench: Bench, config: ModelConfig, kv_tokens: int) -> bool:
    if bench.fake:
        return True
    import torch

    elements = layer_parameters(config) + 2 * config.vocab_size * config.hidden_size
    needed = elements * bench.dtype.itemsize + kv_tokens * config.kv_bytes_per_token(bench.dtype.itemsize)
    return needed < 0.85 * torch.cuda.mem_get_info()[0]


def _prefills(bench: Bench, engine: Engine, executor: DeviceExecutor, name: str) -> list[dict[str, Any]]:
    rows = []
    for tokens, history in ((16, 0), (16, 16)) if bench.fake else ((8192, 0), (2048, 6144)):
        times = []
        for repeat in range(1 if bench.fake else 4):
            executor.reset()
            entering = [engine.entering(0, tokens + history, history)]
            plan = step_plan(repeat, {"r0": (history, tokens)}, ["r0"], entering)
            begin = time.perf_counter()
            executor.execute(plan)
            times.append((time.perf_counter() - begin) * 1e3)
        cost = prefill_floor(engine.config, tokens, history, bench.dtype.itemsize)
        shape = f"{name} {tokens} tokens behind {history}"
        rows.append({**bench.share("prefill step", shape, min(times), *cost), "graphs": False})
    return rows


def _chunks(bench: Bench, engine: Engine) -> list[dict[str, Any]]:
    """One long prompt comes in while others decode: time to its first token against the longest wait of
    the others, by chunk_size.
    """
    prompt, decoders, sizes = (32, 1, (16,)) if bench.fake else (8192, 32, (512, 1024, 2048, 4096, 8192))
    start = 16 if bench.fake else 1024
    executor = engine.executor(max(sizes) + decoders, ())
    rows = []
    for chunk in sizes:
        if bench.seconds_left < 30:
            bench.notes.append("chunk_size sweep cut short: no time")
            break
        executor.reset()
        names = [f"r{index}" for index in range(decoders)]
        for plan in decode_plans(engine, decoders, start, 3):
            executor.execute(plan)
        done, step, waits = 0, 3, []
        long_name = f"r{decoders}"
        begin = time.perf_counter()
        while done < prompt:
            share = min(chunk, prompt - done)
            shares = dict.fromkeys(names, (start - 1 + step, 1))
            shares[long_name] = (done, share)
            entering = [engine.entering(decoders, prompt, 0)] if done == 0 else []
            samples = [*names, long_name] if done + share == prompt else names
            stamp = time.perf_counter()
            executor.execute(step_plan(step, shares, samples, entering))
            waits.append(time.perf_counter() - stamp)
            done, step = done + share, step + 1
        rows.append(
            {
                "chunk_size": chunk,
                "ttft_ms": round((time.perf_counter() - begin) * 1e3, 2),
                "longest_step_ms": round(max(waits) * 1e3, 2),
                "steps": len(waits),
            }
        )
    return rows


def _gaps(
    bench: Bench, engine: Engine, executor: DeviceExecutor, batch: int, context: int
) -> dict[str, Any] | None:
    """Times in which the device ran nothing, between the kernels of queued decode steps (torch.profiler)."""
    executor.reset()
    plans = decode_plans(engine, batch, context, 3 if bench.fake else 24)
    if bench.fake:
        step_ms(bench, executor, plans)
        return {"batch": batch, "gaps": 0, "longest_us": None, "over_20_us": None}
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step_ms(bench, executor, plans)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    spans = spans[len(spans) // 4 : -len(spans) // 8]  # neither the entry nor the last step
    idle, end = [], spans[0][1] if spans else 0
    for begin, stop in spans:
        if begin > end:
            idle.append(begin - end)
        end = max(end, stop)
    return {
        "batch": batch,
        "gaps": len(idle),
        "longest_us": round(max(idle, default=0.0), 1),
        "over_20_us": sum(gap > 20 for gap in idle),
    }
