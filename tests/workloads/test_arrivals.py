"""Arrival processes against their distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from workloads import Arrivals
from workloads.arrivals import offsets_ns
from workloads.errors import WorkloadError

COUNT = 4000


def gaps_s(kind: str, seed: int = 0, **more):
    arrivals = Arrivals(kind=kind, **more)
    return np.diff(offsets_ns(arrivals, COUNT, 50.0, np.random.default_rng(seed))) / 1e9


def test_burst_is_all_at_once():
    assert offsets_ns(Arrivals(kind="burst"), 5, None, np.random.default_rng(0)).tolist() == [0] * 5


def test_closed_has_no_schedule():
    assert offsets_ns(Arrivals(kind="closed", max_concurrency=2), 5, None, np.random.default_rng(0)) is None


def test_constant_never_drifts():
    offsets = offsets_ns(Arrivals(kind="constant"), 3_000_001, 3.0, np.random.default_rng(0))
    assert offsets[-1] == 1_000_000_000_000_000  # a million seconds, to the nanosecond


def test_poisson_gaps_are_exponential():
    assert stats.kstest(gaps_s("poisson"), "expon", args=(0, 1 / 50)).pvalue > 0.01


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_shape_asked_for(burstiness):
    gaps = gaps_s("gamma", burstiness=burstiness)
    scale = 1 / (50 * burstiness)
    assert stats.kstest(gaps, "gamma", args=(burstiness, 0, scale)).pvalue > 0.01


def test_counts_per_second_are_not_more_regular_than_poisson():
    # A schedule rescaled to its nominal mean, or dealt from equal seeds, fails this.
    totals = []
    for seed in range(200):
        offsets = offsets_ns(Arrivals(kind="poisson"), 400, 50.0, np.random.default_rng(seed))
        totals.append(int((offsets < 4e9).sum()))
    index = np.var(totals, ddof=1) / np.mean(totals)
    low, high = stats.chi2.ppf([0.0005, 0.9995], 199) / 199
    assert low < index < high


def test_schedules_start_at_zero_and_ascend():
    for kind in ("poisson", "gamma", "constant"):
        offsets = offsets_ns(Arrivals(kind=kind), 100, 50.0, np.random.default_rng(1))
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_a_rate_so_low_that_stamps_overflow_is_refused(kind):
    with pytest.raises(WorkloadError, match="rate=1e-300: a rate at which the last request is due within"):
        offsets_ns(Arrivals(kind=kind), 3, 1e-300, np.random.default_rng(0))
