"""The core's own part of a step, recorded and not recorded in turns: what the trace adds to the step thread.

The executor costs nothing, so a step is the scheduler, the block tables and the record. Steps that follow
each other see the same machine; the median of their differences is quiet where whole runs differ by a tenth.
"""

from __future__ import annotations

import random
import tempfile
import time

import numpy as np

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.sim import SimExecutor
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from engine.trace.recorder import Row, TraceRecorder
from engine.trace.writer import TraceWriter

CONCURRENCY, PROMPT = 16, 16
FORWARD_S = 0.004
"""A forward as far as the caches are concerned: what the core needs has been evicted when it comes back."""
_SETTLE = 4


class Switch:
    """A recorder that can be off for a step."""

    def __init__(self, inner: TraceRecorder) -> None:
        self._inner = inner
        self.enabled = False

    def record_step(self, row: Row) -> None:
        self._inner.record_step(row)

    def record_event(self, row: Row) -> None:
        self._inner.record_event(row)

    def close(self) -> None:
        self._inner.close()


def enter(core: EngineCore, seed: int, output: int) -> None:
    """Give the core :data:`CONCURRENCY` requests of ``output`` tokens each."""
    rng = random.Random(seed)
    for i in range(CONCURRENCY):
        core.add_request(
            EngineCoreRequest(
                request_id=f"{seed}-{i}",
                external_id=f"{seed}-{i}",
                prompt_token_ids=[rng.randrange(1, 40_000) for _ in range(PROMPT)],
                params=SamplingParams(max_tokens=output, ignore_eos=True),
                eos_token_ids=[],
                arrival_ns=0,
            )
        )


def core_steps(output: int, pause_s: float, *, record: bool = True) -> tuple[float, float]:
    """(µs of an unrecorded step, µs that recording adds to it), medians, with 16 requests in flight.

    Args:
        output: steps to take.
        pause_s: sleep between steps; with :data:`FORWARD_S` the caches are cold.
        record: False: never, which shows what the method itself does.
    """
    took: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        clock = MonotonicClock()
        switch = Switch(TraceWriter(folder))
        config = EngineConfig.create(enable_prefix_caching=False)
        core = EngineCore.create(config, SimExecutor(2048, clock), clock, switch)
        enter(core, 0, output)
        while core.has_work():
            switch.enabled = record and len(took) % 4 in (1, 2)
            begin = time.perf_counter_ns()
            core.step()
            took.append(time.perf_counter_ns() - begin)
            if pause_s:
                time.sleep(pause_s)
        core.shutdown()
    steps = np.array(took[_SETTLE : len(took) // 4 * 4 - 4], np.float64).reshape(-1, 4) / 1e3
    added = (steps[:, 1] + steps[:, 2] - steps[:, 0] - steps[:, 3]) / 2  # off, on, on, off
    return float(np.median(steps[:, [0, 3]])), float(np.median(added))
