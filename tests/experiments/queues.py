"""A first-come queue with several servers and a fixed service time: what its capacity is, is arithmetic."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def play(
    rate: float, count: int, *, servers: int, service_s: float, seed: int, poisson: bool
) -> tuple[Floats, Floats, Floats]:
    """Arrival, wait before service, and end of each request."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0 / rate, count) if poisson else np.full(count, 1.0 / rate)
    arrival = np.cumsum(gaps)
    free = [0.0] * servers
    wait, end = np.empty(count), np.empty(count)
    for i, at in enumerate(arrival):
        start = max(at, heapq.heappop(free))
        wait[i], end[i] = start - at, start + service_s
        heapq.heappush(free, end[i])
    return arrival, wait, end
