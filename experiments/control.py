"""The control kernel: fixed work that no factor can touch, timed just before and just after each run.

When it moves, something else used the machine. Only the control decides that a block is contaminated: a
suite's own median as control would erase a real change that hits every run alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

TOLERANCE = 0.05
"""A block whose control moves more than this is marked contaminated."""


class ControlKernel:
    """A small matrix product and a memory copy, about 3 ms; the best of ``repeats`` filters out short
    interruptions."""

    def __init__(self, repeats: int = 15) -> None:
        self._repeats = repeats
        random = np.random.default_rng(0)
        self._a = random.standard_normal((256, 256), dtype=np.float32)
        self._out = np.empty_like(self._a)
        self._source = np.zeros(4 * 2**20, dtype=np.uint8)
        self._copy = np.empty_like(self._source)

    def __call__(self) -> float:
        """Milliseconds of the fastest repeat."""
        best = float("inf")
        for _ in range(self._repeats):
            start = time.perf_counter_ns()
            for _ in range(2):
                np.matmul(self._a, self._a, out=self._out)
            np.copyto(self._copy, self._source)
            best = min(best, (time.perf_counter_ns() - start) / 1e6)
        return best


def block_is_contaminated(readings: Sequence[Sequence[float]]) -> bool:
    """Whether any run's control (mean of before and after) is off the block's median by more than the
    tolerance.

    Args:
        readings: per run of the block, its control times in ms.
    """
    means = [fmean(pair) for pair in readings if pair]
    if len(means) < 2:
        return False
    middle = median(means)
    return any(abs(mean / middle - 1.0) > TOLERANCE for mean in means)
