"""Cost of the scheduler's and the KV bookkeeping's work in one step, without any model.

    python benchmarks/scheduler.py [--json]

A step here is ``schedule`` plus ``update``; producing the result stands outside the measured time. What to
see: at most 1 ms at 256 running requests, cost linear in scheduled requests, flat in waiting ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.executor.sim import SimExecutor
from engine.kv.manager import KVCacheManager
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.scheduler import Scheduler
from engine.trace.recorder import NullRecorder, RingRecorder, TraceRecorder

BLOCK_SIZE = 16
PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Case:
    """One measurement: ``num_running`` requests decode while ``num_waiting`` wait."""

    name: str
    num_running: int
    num_waiting: int = 0
    policy: str = "fcfs"
    prefix_caching: bool = True
    trace: bool = False


CASES = (
    Case("1 running", 1),
    Case("64 running", 64),
    Case("128 running", 128),
    Case("256 running", 256),
    Case("256 running, no prefix cache", 256, prefix_caching=False),
    Case("256 running, traced", 256, trace=True),
    Case("256 running, 1,000 waiting", 256, 1_000),
    Case("256 running, 100,000 waiting", 256, 100_000),
    Case("256 running, 100,000 waiting, priority", 256, 100_000, policy="priority"),
    Case("512 running", 512),
)


@dataclass(frozen=True)
class Timing:
    """Microseconds of a step."""

    name: str
    num_running: int
    num_waiting: int
    median_us: float
    p99_us: float
    schedule_median_us: float
    update_median_us: float


def measure(case: Case, num_steps: int) -> Timing:
    """Time ``num_steps`` decode steps of ``case``."""
    num_blocks = case.num_running * (PROMPT_TOKENS + num_steps + 64) // BLOCK_SIZE + 64
    config = EngineConfig.create(
        max_num_seqs=case.num_running,
        max_num_batched_tokens=max(8192, case.num_running),
        block_size=BLOCK_SIZE,
        scheduling_policy=case.policy,
        enable_prefix_caching=case.prefix_caching,
    )
    clock = MonotonicClock()
    trace: TraceRecorder = RingRecorder() if case.trace else NullRecorder()
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_caching=case.prefix_caching)
    scheduler = Scheduler(config, kv, clock, trace)
    executor = SimExecutor(num_blocks, clock)
    for index in range(case.num_running + case.num_waiting):
        scheduler.add(_request(index))
    while len(scheduler.state.running) < case.num_running:
        plan = scheduler.schedule()
        scheduler.update(plan, executor.execute(plan))
    schedule_ns, update_ns = [], []
    gc.collect()
    gc.freeze()
    for _ in range(num_steps):
        start = time.perf_counter_ns()
        plan = scheduler.schedule()
        planned = time.perf_counter_ns()
        result = executor.execute(plan)
        executed = time.perf_counter_ns()
        scheduler.update(plan, result)
        schedule_ns.append(planned - start)
        update_ns.append(time.perf_counter_ns() - executed)
    gc.unfreeze()
    total = sorted(a + b for a, b in zip(schedule_ns, update_ns, strict=True))
    return Timing(
        case.name,
        case.num_running,
        case.num_waiting,
        median_us=statistics.median(total) / 1e3,
        p99_us=total[int(len(total) * 0.99)] / 1e3,
        schedule_median_us=statistics.median(schedule_ns) / 1e3,
        update_median_us=statistics.median(update_ns) / 1e3,
    )


def _request(index: int) -> EngineCoreRequest:
    # Lengths differ, as in real traffic: else all requests would fill a block in the same step.
    length = PROMPT_TOKENS - index % BLOCK_SIZE if index < 1024 else BLOCK_SIZE
    tokens = [(index * 7919 + position) % 32_000 for position in range(length)]
    return EngineCoreRequest(
        request_id=str(index),
        external_id=str(index),
        prompt_token_ids=tokens,
        params=SamplingParams(max_tokens=None, ignore_eos=True),
        eos_token_ids=[],
        arrival_ns=index,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="steps measured in each case")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps={arguments.steps}: at least 1")
    out = sys.stderr if arguments.json else sys.stdout
    print(f"{'case':40} {'median':>9} {'p99':>9} {'schedule':>9} {'update':>9}   (µs a step)", file=out)
    timings = []
    for case in CASES:
        timing = measure(case, arguments.steps)
        timings.append(timing)
        print(
            f"{timing.name:40} {timing.median_us:9.1f} {timing.p99_us:9.1f} "
            f"{timing.schedule_median_us:9.1f} {timing.update_median_us:9.1f}",
            file=out,
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "cases": [asdict(timing) for timing in timings]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
