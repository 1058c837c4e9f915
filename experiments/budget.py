"""Wall-clock budget of a sweep."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """Counted from its making. ``limit_s`` None: no end."""

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._start = clock()

    def elapsed(self) -> float:
        return self._clock() - self._start

    def left(self) -> float | None:
        return None if self._limit_s is None else self._limit_s - self.elapsed()

    def holds(self, seconds: float) -> bool:
        """Whether ``seconds`` more still fit."""
        left = self.left()
        return left is None or seconds <= left
