"""Queues with one server and fixed service time: the oracle for schedule-anchored latency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


def lindley(arrivals_s: Floats, service_s: float) -> Floats:
    """[n] Exact waits of a first-come, first-served queue that is empty at first (Lindley's recursion).

    Args:
        arrivals_s: [n] ascending.
    """
    waits = np.zeros(len(arrivals_s))
    wait = 0.0
    for i, gap in enumerate(np.diff(arrivals_s).tolist(), 1):
        wait = max(0.0, wait + service_s - gap)
        waits[i] = wait
    return waits


def deterministic_wait(count: int, rate: float, service_s: float) -> float:
    """Mean wait of ``count`` arrivals in D/D/1 that starts empty: i·(S − 1/λ) for the i-th, when positive."""
    return max(0.0, service_s - 1.0 / rate) * (count - 1) / 2


def pollaczek_khinchine_wait(rate: float, service_s: float) -> float:
    """Mean wait in M/D/1: ρ·S / (2·(1 − ρ)).

    Raises:
        ValueError: ρ is 1 or more.
    """
    load = rate * service_s
    if load >= 1.0:
        raise ValueError(f"rate {rate:g}/s times {service_s:g} s is {load:g}: not below capacity")
    return load * service_s / (2 * (1 - load))


def batch_interval(values: Floats, batches: int = 20, level: float = 0.99) -> tuple[float, float]:
    """Interval of the mean of correlated values, by batch means and Student's t."""
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    half = float(stats.t.ppf(0.5 + level / 2, batches - 1) * means.std(ddof=1) / np.sqrt(batches))
    return float(means.mean()) - half, float(means.mean()) + half
