"""What every part is given: the device, a clock for kernels, the ceilings, and how much time is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

FLUSH_BYTES = 512 << 20
"""Written before every timed launch: more than any second-level cache holds, and long enough that the launch
is queued before the device comes to it."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device did at best in this run."""

    copy_gb_s: float
    """Device to device, bytes read and written."""
    bf16_tflop_s: float
    """8192 × 8192 × 8192 matrix product."""

    def floor_ms(self, num_bytes: float, flop: float) -> float:
        """The time that the larger of the two needs at best."""
        return max(num_bytes / self.copy_gb_s / 1e6, flop / self.bf16_tflop_s / 1e9)

    def bound(self, num_bytes: float, flop: float) -> str:
        memory = num_bytes / self.copy_gb_s / 1e6
        return "memory" if memory >= flop / self.bf16_tflop_s / 1e9 else "compute"


@dataclass
class Bench:
    """One run.

    Args:
        fake: no device: tiny shapes on the CPU, kernels in Triton's interpreter; figures mean nothing.
        deadline: monotonic seconds at which parts are left out.
    """

    device: torch.device
    fake: bool
    deadline: float
    notes: list[str] = field(default_factory=list)
    ceilings: Ceilings | None = None
    _flush: torch.Tensor | None = None

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.fake else torch.bfloat16

    def required_ceilings(self) -> Ceilings:
        if self.ceilings is None:
            raise RuntimeError("the ceilings have not been measured")
        return self.ceilings

    def time_ms(self, work: Callable[[], object], repeats: int = 10, *, flush: bool = True) -> float:
        """Median time of ``work`` on the device, caches cold."""
        work()  # compiles
        if self.fake:
            begin = time.perf_counter()
            work()
            return (time.perf_counter() - begin) * 1e3
        if self._flush is None:
            self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        pairs = []
        for _ in range(repeats):
            if flush:
                self._flush.zero_()
            begin_event = torch.cuda.Event(enable_timing=True)
            end_event = torch.cuda.Event(enable_timing=True)
            begin_event.record()
            work()
            end_event.record()
            pairs.append((begin_event, end_event))
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in pairs)

    def synchronize(self) -> None:
        if not self.fake:
            torch.cuda.synchronize()

    def share(self, name: str, shape: str, ms: float, num_bytes: float, flop: float) -> dict[str, Any]:
        """A row of the table: time, floor, and what part of the time the floor is."""
        ceilings = self.required_ceilings()
        floor = ceilings.floor_ms(num_bytes, flop)
        return {
            "what": name,
            "shape": shape,
            "ms": round(ms, 4),
            "floor_ms": round(floor, 4),
            "share": round(floor / ms, 3) if ms > 0 else None,
            "bound": ceilings.bound(num_bytes, flop),
        }
