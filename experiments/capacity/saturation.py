"""Is the queue still growing? Then latency percentiles describe the length of the run, not the target.

Judged by slopes: time to first token and requests in flight, each averaged over stretches of the run and
fitted by a line over time. Only when both rise for sure, and by enough to matter, is the run called unstable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

BINS = 8
ALPHA = 0.01
GROWTH = 0.5
"""Rise over the run, as a share of the middle, that counts."""
FEWEST = 24
"""Requests below which slopes say nothing."""


@dataclass(frozen=True)
class Stability:
    """``stable`` None: too few requests to tell."""

    stable: bool | None
    text: str


def judge_stability(sent_s: Floats, ttft_s: Floats, end_s: Floats) -> Stability:
    """Args:
    sent_s: when each request was meant to be sent.
    ttft_s: its time to first token, nan when it had none.
    end_s: when it ended.
    """
    if len(sent_s) < FEWEST:
        return Stability(None, f"{len(sent_s)} requests: too few for a slope")
    order = np.argsort(sent_s, kind="stable")
    sent, ttft, end = sent_s[order], ttft_s[order], end_s[order]
    first, last = float(sent[0]), float(sent[-1])
    if not last > first:
        return Stability(None, "all requests at once: no slope")
    edges = np.linspace(first, last, BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    place = np.clip(np.searchsorted(edges, sent, side="right") - 1, 0, BINS - 1)
    waits = np.array([_mean(ttft[place == i]) for i in range(BINS)])
    flying = np.array([float(((sent <= t) & (end > t)).sum()) for t in middles])
    wait, load = _rise(middles, waits), _rise(middles, flying)
    if wait is not None and load is not None and wait > GROWTH and load > GROWTH:
        text = (
            f"still growing at the end: first tokens {wait:+.0%}, requests in flight {load:+.0%} over the run"
        )
        return Stability(False, text)
    return Stability(True, "no growth")


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _rise(times: Floats, values: Floats) -> float | None:
    """Fitted change from the first to the last stretch over the mean; None when it may be chance."""
    known = ~np.isnan(values)
    if known.sum() < 4 or float(values[known].mean()) <= 0:
        return None
    fit = stats.linregress(times[known], values[known], alternative="greater")
    if not float(fit.pvalue) <= ALPHA:
        return None
    return float(fit.slope) * float(times[-1] - times[0]) / float(values[known].mean())
