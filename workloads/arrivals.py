"""Intended send times. One call makes the whole schedule: absolute offsets, so nothing drifts while it is
played."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.profile import profile_times
from workloads.spec import Arrivals

_TOO_LATE_NS = 2.0**63


def offsets_ns(
    arrivals: Arrivals, count: int, rate: float | None, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """``count`` offsets from the start, ascending, the first at 0; None in a closed loop.

    Gaps have mean 1/rate and are *not* rescaled to end at count/rate exactly: a rescaled process is not
    Poisson any more. Short runs therefore have a random mean rate, which is stored beside the nominal one.
    With stages the same process is drawn at unit rate and laid over them; what would come after a last stage
    of rate 0 is left out, so fewer than ``count`` may be returned.

    Raises:
        WorkloadError: the kind needs a rate and there is none, or it is so low that a stamp would overflow.
    """
    if arrivals.kind == "closed":
        return None
    if arrivals.kind == "burst":
        return np.zeros(count, np.int64)
    if arrivals.stages:
        times = profile_times(arrivals.stages, _unit(arrivals, count, rng))
        return np.rint(times[np.isfinite(times)] * 1e9).astype(np.int64)
    if rate is None:
        raise WorkloadError("rate", rate, f"requests per second, above 0: {arrivals.kind} arrivals need it")
    if not (rate > 0 and np.isfinite(rate)):
        raise WorkloadError("rate", rate, "requests per second, above 0 and finite")
    if arrivals.kind == "constant":
        # From the index, not by adding gaps: rounding never accumulates.
        return _stamps(np.arange(count, dtype=np.float64), 1e9 / rate, rate)
    shape = arrivals.burstiness if arrivals.kind == "gamma" else 1.0
    gaps = rng.gamma(shape, 1.0 / (rate * shape), size=max(count - 1, 0))
    return _stamps(np.concatenate((np.zeros(1), np.cumsum(gaps)))[:count], 1e9, rate)


def _stamps(times: NDArray[np.float64], unit_ns: float, rate: float) -> NDArray[np.int64]:
    """``times`` in units of ``unit_ns`` as nanoseconds; refuses a last one that 63 bits can't hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        stamps = np.rint(times * unit_ns)
    if not np.all(stamps < _TOO_LATE_NS):
        raise WorkloadError("rate", rate, "a rate at which the last request is due within 292 years")
    return stamps.astype(np.int64)


def _unit(arrivals: Arrivals, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """``count`` arrivals at rate 1, the first at 0."""
    if arrivals.kind == "constant":
        return np.arange(count, dtype=np.float64)
    shape = arrivals.burstiness if arrivals.kind == "gamma" else 1.0
    gaps = rng.gamma(shape, 1.0 / shape, size=max(count - 1, 0))
    return np.concatenate((np.zeros(1), np.cumsum(gaps)))[:count]
