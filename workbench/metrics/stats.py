"""Summaries of samples: exact percentiles, and bootstrap intervals that resample requests, not events.

The gaps inside one request, and across a batch's step, go together: a thousand gaps are not a thousand
samples. So an interval resamples whole requests with everything they own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.metrics.columns import Floats, Ints

PERCENTILES = (50, 90, 95, 99)
RESAMPLED = ("p50", "p99", "mean")
"""Statistics that get an interval."""
_REPLICATES = 1000
_FEWEST = 200
_BATCH = 1_000_000
_WORK = 5_000_000
"""Values touched at most by one bootstrap: large samples get fewer replicates."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Values in ms. Value i stands ``weight[i]`` times in the sample and belongs to request ``owner[i]``."""

    values: Floats
    owner: Ints
    weight: Ints

    @classmethod
    def one_each(cls, values: Floats) -> Sample:
        """One value per request; NaN (undefined) is left out."""
        defined = np.flatnonzero(~np.isnan(values))
        return cls(values[defined], defined.astype(np.int64), np.ones(len(defined), np.int64))

    def sorted(self) -> Sample:
        order = np.argsort(self.values, kind="stable")
        return Sample(self.values[order], self.owner[order], self.weight[order])


def quantile(values: Floats, weight: Ints, q: float) -> float:
    """Quantile of the expanded sample by linear interpolation, as ``np.percentile`` gives it.

    Args:
        values: [n] ascending.
        weight: [n] how often each stands in the sample; the sum is above 0.
    """
    upto = np.cumsum(weight)
    rank = (int(upto[-1]) - 1) * q
    low = int(np.floor(rank))
    high = int(np.ceil(rank))
    at_low, at_high = np.searchsorted(upto, [low, high], side="right")
    below, above = float(values[at_low]), float(values[at_high])
    return below + (above - below) * (rank - low)


def nearest_rank(values: Floats, weight: Ints, q: float) -> float:
    """Smallest value with at least the share ``q`` of the sample at or below it. ``values`` in any order."""
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    # ceil(q·n) in whole numbers: 0.95·20 is 19.000000000000004 in floating point.
    rank = int(np.ceil(round(q * int(upto[-1]), 9)))
    return float(values[order][np.searchsorted(upto, max(rank, 1), side="left")])


def summary(sample: Sample, seed: int = 0) -> dict[str, Any]:
    """The entry of one latency in ``metrics.json``. Without values every statistic is None."""
    sample = sample.sorted()
    count = int(sample.weight.sum())
    out: dict[str, Any] = {"unit": "ms", "n": count, "n_requests": len(np.unique(sample.owner))}
    if count == 0:
        names = ("mean", "std", *(f"p{p}" for p in PERCENTILES), "max")
        return {**out, **dict.fromkeys(names), "p99_flagged": True, "ci": {}}
    mean = float(np.average(sample.values, weights=sample.weight))
    out["mean"] = mean
    out["std"] = float(np.sqrt(np.average((sample.values - mean) ** 2, weights=sample.weight)))
    for p in PERCENTILES:
        out[f"p{p}"] = quantile(sample.values, sample.weight, p / 100)
    out["max"] = float(sample.values[-1])
    # Fewer than ten values lie beyond the p99: it is a guess.
    out["p99_flagged"] = count * 0.01 < 10
    out["ci"] = intervals(sample, seed)
    return out


def intervals(sample: Sample, seed: int) -> dict[str, list[float]]:
    """95 % percentile-bootstrap intervals of p50, p99 and the mean, resampling requests. Empty with fewer
    than two."""
    drawn = replicates(sample, seed)
    if drawn is None:
        return {}
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {name: [float(low[i]), float(high[i])] for i, name in enumerate(RESAMPLED)}


def replicates(sample: Sample, seed: int) -> Floats | None:
    """[replicates, 3] p50, p99 and mean of resampled requests; None with fewer than two requests.

    Args:
        sample: values ascending, as :meth:`Sample.sorted` gives them.
    """
    owners, position = np.unique(sample.owner, return_inverse=True)
    if len(owners) < 2:
        return None
    rng = np.random.default_rng(seed)
    size = len(sample.values)
    count = max(_FEWEST, min(_REPLICATES, _WORK // size))
    at_once = max(1, _BATCH // max(size, len(owners)))
    sums = np.bincount(position, weights=sample.values * sample.weight)
    parts = []
    for first in range(0, count, at_once):
        rows = min(at_once, count - first)
        drawn = rng.multinomial(len(owners), np.full(len(owners), 1 / len(owners)), size=rows)
        weight = drawn[:, position] * sample.weight
        upto = np.cumsum(weight, axis=1)
        mean = (drawn @ sums) / upto[:, -1]
        parts.append(np.column_stack((_rows(sample, upto, 0.50), _rows(sample, upto, 0.99), mean)))
    return np.concatenate(parts)


def _rows(sample: Sample, upto: Ints, q: float) -> Floats:
    """:func:`quantile` of every row of cumulated weights [rows, n]."""
    rank = (upto[:, -1] - 1) * q
    low = np.floor(rank)
    below, above = (sample.values[(upto <= at[:, None]).sum(axis=1)] for at in (low, np.ceil(rank)))
    out: Floats = below + (above - below) * (rank - low)
    return out
