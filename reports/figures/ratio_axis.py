"""Axes of ratios: logarithmic, so that half and double lie equally far from no change, and labelled in
percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from reports.metric_names import change

_TICKS = (
    0.02,
    0.05,
    0.1,
    0.2,
    0.33,
    0.5,
    0.67,
    0.8,
    0.9,
    1.0,
    1.1,
    1.25,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
    50.0,
)
_FINE_TICKS = (0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06)


def limits(
    points: Iterable[float | None], ends: Iterable[float | None], delta: float = 0.0
) -> tuple[float, float]:
    """Ends of an axis: all ``points``, ±``delta``, and ``ends`` of intervals unless they squeeze all else."""
    inner = [math.log(v) for v in points if _drawable(v)]
    inner += [-math.log1p(1.6 * delta), math.log1p(1.6 * delta)]
    low, high = min(inner), max(inner)
    room = max(1.5 * (high - low), 0.05)
    outer = [math.log(v) for v in ends if _drawable(v)]
    low = max(min([low, *outer]), low - room)
    high = min(max([high, *outer]), high + room)
    margin = max(0.06 * (high - low), 0.005)
    return math.exp(low - margin), math.exp(high + margin)


def ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Values and labels between ``low`` and ``high``, no two closer than a fifth of the axis, 1.0 always
    there.
    """
    every = _TICKS if high / low > 1.2 else _FINE_TICKS
    found = spread([t for t in every if low <= t <= high], math.log(high / low))
    return found, [change(t).replace(".0 %", " %") for t in found]


def spread(candidates: Sequence[float], span: float) -> list[float]:
    """Candidates at least a fifth of ``span`` (of logarithms) apart; far ones first, 1.0 always kept."""
    kept = [1.0]
    for tick in sorted(candidates, key=lambda t: abs(math.log(t)), reverse=True):
        if all(abs(math.log(tick / other)) > span / 5 for other in kept):
            kept.append(tick)
    return sorted(kept)


def _drawable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0
