"""What is known while a run is under way: live counters, and the snapshots that a display gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LoadCounters:
    """Counters of the phase that runs now. Written on the event loop only."""

    planned: int = 0
    sent: int = 0
    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0
    tokens: int = 0
    """Generated tokens seen so far, where events tell; an estimate for display, never a metric."""
    recent_ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    """Of the latest successes; for display."""


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """A snapshot for display."""

    phase: str
    """starting | building the workload | first request | warm-up | measuring | collecting"""
    elapsed_s: float = 0.0
    """Since the phase began."""
    planned: int = 0
    sent: int = 0
    ok: int = 0
    failed: int = 0
    in_flight: int = 0
    tokens: int = 0
    expected_s: float | None = None
    """Length of the schedule, when it has one."""
    recent_ttft_ms: tuple[float, ...] = ()
    """Time to first token of the latest successes."""
    note: str = ""
    """What it waits for, when that takes longer than a moment."""

    @property
    def done(self) -> int:
        return self.ok + self.failed

    @property
    def eta_s(self) -> float | None:
        """Seconds left: by the schedule while it lasts, then by the rate of completion."""
        if self.done == 0 or self.planned == 0:
            return None
        by_rate = self.elapsed_s * (self.planned - self.done) / self.done
        by_schedule = (self.expected_s or 0.0) - self.elapsed_s
        return max(by_rate, by_schedule, 0.0)


ProgressCallback = Callable[[BenchProgress], None]
