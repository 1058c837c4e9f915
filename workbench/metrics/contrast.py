"""Two runs against each other, by the noise inside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.metrics.stats import RESAMPLED, Sample, quantile, replicates

_SEEDS = (1, 2)


@dataclass(frozen=True, slots=True)
class Contrast:
    """Ratio of a statistic, second over first, with its 95 % bootstrap interval (None: too few requests)."""

    statistic: str
    point: float
    low: float | None
    high: float | None


def contrasts(first: Sample, second: Sample) -> list[Contrast]:
    """Ratios of p50, p99 and mean. Requests of both samples are resampled independently, whole.

    The interval knows only the noise inside these two runs. What differs from one run to the next (the
    machine's state, the process) is not in it: only repeated runs tell, which is what a sweep is for.
    """
    first, second = first.sorted(), second.sorted()
    if not len(first.values) or not len(second.values):
        return []
    drawn = [replicates(sample, seed) for sample, seed in zip((first, second), _SEEDS, strict=True)]
    points = [_points(sample) for sample in (first, second)]
    out = []
    for i, name in enumerate(RESAMPLED):
        if points[0][i] <= 0:
            continue
        low = high = None
        if drawn[0] is not None and drawn[1] is not None:
            count = min(len(drawn[0]), len(drawn[1]))
            below = drawn[0][:count, i]
            usable = below > 0
            if usable.any():
                ratio = drawn[1][:count, i][usable] / below[usable]
                low, high = (float(v) for v in np.percentile(ratio, [2.5, 97.5]))
        out.append(Contrast(name, points[1][i] / points[0][i], low, high))
    return out


def _points(sample: Sample) -> tuple[float, float, float]:
    return (
        quantile(sample.values, sample.weight, 0.50),
        quantile(sample.values, sample.weight, 0.99),
        float(np.average(sample.values, weights=sample.weight)),
    )
