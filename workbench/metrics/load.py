"""What load was really delivered, and how late the client itself was."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.metrics.columns import Floats, Requests


def load_metrics(
    requests: Requests, loop: str, requested_rate: float | None, duration_s: float
) -> dict[str, Any]:
    """The ``load`` part of ``metrics.json``.

    ``lag`` = sent − released: only what the client added. ``offered_rate`` is the schedule's own mean rate
    (a short Poisson
    schedule does not have the nominal one), ``achieved_rate`` the same over actual send times.
    """
    lag = requests.sent - requests.released
    lag = lag[~np.isnan(lag)]
    busy = requests.close - requests.sent
    return {
        "loop": loop,
        "requested_rate": requested_rate,
        "offered_rate": _mean_rate(requests.intended),
        "achieved_rate": _mean_rate(requests.sent),
        "lag_p50_ms": float(np.percentile(lag, 50)) if len(lag) else None,
        "lag_p99_ms": float(np.percentile(lag, 99)) if len(lag) else None,
        "peak_concurrency": peak_concurrency(requests.sent, requests.close),
        "mean_concurrency": float(np.nansum(busy)) / 1e3 / duration_s if duration_s > 0 else None,
    }


def peak_concurrency(start: Floats, end: Floats) -> int:
    """Most half-open intervals [start, end) that overlap: one that ends when another starts does not."""
    known = ~(np.isnan(start) | np.isnan(end))
    times = np.concatenate((end[known], start[known]))
    change = np.concatenate((np.full(int(known.sum()), -1), np.full(int(known.sum()), 1)))
    if not len(times):
        return 0
    # Ends stand first in the array, and the sort is stable: at the same time they come first.
    return max(0, int(np.cumsum(change[np.argsort(times, kind="stable")]).max()))


def _mean_rate(times: Floats) -> float | None:
    """Arrivals per second between the first and the last; None when they span no time."""
    times = times[~np.isnan(times)]
    if len(times) < 2:
        return None
    span_s = float(times.max() - times.min()) / 1e3
    return (len(times) - 1) / span_s if span_s > 0 else None
