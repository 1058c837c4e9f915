"""One clock for the whole product: ``CLOCK_MONOTONIC`` in integer nanoseconds.

The clock is injected, so the simulator can run the real scheduler on virtual time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin; never goes back."""
        ...


class MonotonicClock:
    """The host's monotonic clock: stamps of different processes of one host can be compared."""

    __slots__ = ()

    def now_ns(self) -> int:
        return time.monotonic_ns()


class VirtualClock:
    """A clock that only moves when it is told to."""

    __slots__ = ("_now",)

    def __init__(self, start_ns: int = 0) -> None:
        self._now = start_ns

    def now_ns(self) -> int:
        return self._now

    def advance_ns(self, delta_ns: int) -> None:
        if delta_ns < 0:
            raise ValueError(f"delta_ns={delta_ns}: time can't go back")
        self._now += delta_ns

    def advance_to_ns(self, when_ns: int) -> None:
        self._now = max(self._now, when_ns)
