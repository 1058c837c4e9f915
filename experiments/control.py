"""The control kernel: fixed work that no factor can touch, timed just before and just after each run.

When it moves, something else used the machine. Only the control decides that a block is contaminated: a
suite's own median as control would erase a real change that hits every run alike. What counts as moving is
learnt from the control itself, because one machine's calm is another's storm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

LEAST_TOLERANCE = 0.05
MOST_TOLERANCE = 0.30
"""However restless a machine is: a run whose control took a third longer had half a core less."""
SPREADS = 4.0
"""Tolerance in robust standard deviations of the control within blocks."""
_MAD_TO_SD = 1.4826


class ControlKernel:
    """Elementwise products and memory copies, a few milliseconds, on every usable core at once.

    On all cores, because the engine uses them all: a neighbour that takes one core slows the engine, and a
    kernel on a single core would not see him. Nothing here calls a threaded BLAS, whose spinning workers
    make the time of a small product jump a hundredfold on a busy machine.
    """

    def __init__(self, repeats: int = 15, threads: int | None = None) -> None:
        self._repeats = repeats
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = threads or usable
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="control")
        random = np.random.default_rng(0)
        self._inputs = [random.standard_normal(2**17, dtype=np.float32) for _ in range(self._threads)]

    def __call__(self) -> float:
        """Milliseconds: the median over the repeats."""
        times = []
        for _ in range(self._repeats):
            start = time.perf_counter_ns()
            wait([self._pool.submit(_work, values) for values in self._inputs])
            times.append((time.perf_counter_ns() - start) / 1e6)
        return median(times)


def _work(values: NDArray[np.float32]) -> None:
    """About 4 ms; numpy lets go of the interpreter's lock inside each call."""
    out, copy = np.empty_like(values), np.empty(2**20, dtype=np.float32)
    source = np.zeros_like(copy)
    for _ in range(40):
        np.multiply(values, values, out=out)
        np.add(out, values, out=out)
    for _ in range(3):
        np.copyto(copy, source)


@dataclass(frozen=True)
class Contamination:
    """``tolerance``: share by which the control may differ inside a block; ``blocks``: those where it did."""

    tolerance: float
    blocks: list[int]


def find_contamination(readings: Mapping[int, Sequence[Sequence[float]]]) -> Contamination:
    """Blocks in which some run's control (mean of before and after) differs from the block's median.

    Slower or faster alike, as a ratio: a level that happened to run in a moment of grace of a busy machine is
    flattered by as much as a disturbed one is wronged. The tolerance is :data:`SPREADS` robust standard
    deviations of all runs about their block's median, between :data:`LEAST_TOLERANCE` and
    :data:`MOST_TOLERANCE`.

    Args:
        readings: block to, per run of the block, its control times in ms.
    """
    offsets: dict[int, list[float]] = {}
    for block, runs in readings.items():
        means = [fmean(pair) for pair in runs if pair]
        if len(means) >= 2:
            middle = median(means)
            offsets[block] = [max(mean / middle, middle / mean) - 1.0 for mean in means]
    everything = [offset for block in offsets.values() for offset in block]
    if not everything:
        return Contamination(LEAST_TOLERANCE, [])
    learnt = SPREADS * _MAD_TO_SD * median(everything)
    tolerance = min(MOST_TOLERANCE, max(LEAST_TOLERANCE, learnt))
    return Contamination(tolerance, sorted(b for b, found in offsets.items() if max(found) > tolerance))
