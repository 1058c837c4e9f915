"""Percentiles against numpy, bootstrap against known noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.metrics.contrast import contrasts
from workbench.metrics.stats import Sample, intervals, nearest_rank, quantile, replicates, summary

_WEIGHTED = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 7)), min_size=1, max_size=40)


def sample_of(pairs, owners=None) -> Sample:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    owner = np.arange(len(pairs)) if owners is None else np.array(owners)
    return Sample(values.astype(float), owner, weights.astype(np.int64)).sorted()


@given(_WEIGHTED, st.floats(0, 1))
def test_quantile_is_numpys_on_the_expanded_sample(pairs, q):
    sample = sample_of(pairs)
    expanded = np.repeat(sample.values, sample.weight)
    assert quantile(sample.values, sample.weight, q) == pytest.approx(
        np.quantile(expanded, q), rel=1e-9, abs=1e-9
    )


@given(_WEIGHTED, st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_nearest_rank_is_numpys_inverted_cdf(pairs, q):
    sample = sample_of(pairs)
    expanded = np.sort(np.repeat(sample.values, sample.weight))
    # ceil(q·n) in exact arithmetic
    rank = -(-int(q * 100) * len(expanded) // 100)
    assert nearest_rank(sample.values[::-1], sample.weight[::-1], q) == expanded[max(rank, 1) - 1]


def test_nearest_rank_is_not_thrown_off_by_floating_point():
    # 0.95 · 20 is 19.000000000000004 in some orders of evaluation; the rank is 19.
    assert nearest_rank(np.arange(1.0, 21.0), np.ones(20, np.int64), 0.95) == 19


@given(_WEIGHTED)
def test_summary_is_numpys_on_the_expanded_sample(pairs):
    sample = sample_of(pairs)
    expanded = np.repeat(sample.values, sample.weight)
    found = summary(sample)
    assert found["n"] == len(expanded)
    assert found["mean"] == pytest.approx(expanded.mean())
    assert found["std"] == pytest.approx(expanded.std(), abs=1e-6 * (1 + expanded.max()))
    assert found["max"] == expanded.max()
    for p in (50, 90, 95, 99):
        assert found[f"p{p}"] == pytest.approx(np.percentile(expanded, p))


@pytest.mark.parametrize(("n", "flagged"), [(999, True), (1000, False)])
def test_p99_is_flagged_below_ten_values_beyond_it(n, flagged):
    assert summary(Sample.one_each(np.arange(float(n))))["p99_flagged"] is flagged


def test_replicates_resample_requests_with_all_they_own():
    # Request 0 owns 1, 1, 1; request 1 owns 5. A replicate is {0,0}, {0,1} or {1,1}.
    sample = sample_of([(1.0, 1), (1.0, 1), (1.0, 1), (5.0, 1)], owners=[0, 0, 0, 1])
    means = set(np.round(replicates(sample, 0)[:, 2], 9))
    assert means == {1.0, 2.0, 5.0}


def test_replicates_agree_with_a_plain_loop():
    rng = np.random.default_rng(5)
    owners = rng.integers(0, 12, 80)
    sample = sample_of(
        [(float(v), int(w)) for v, w in zip(rng.gamma(2, 10, 80), rng.integers(1, 4, 80), strict=True)],
        owners,
    )
    fast = replicates(sample, 3)
    present, position = np.unique(sample.owner, return_inverse=True)
    drawn = np.random.default_rng(3).multinomial(
        len(present), np.full(len(present), 1 / len(present)), size=len(fast)
    )
    for row, times in zip(fast[:50], drawn[:50], strict=True):
        expanded = np.repeat(sample.values, sample.weight * times[position])
        expected = [np.quantile(expanded, 0.5), np.quantile(expanded, 0.99), expanded.mean()]
        assert row == pytest.approx(expected)


def test_intervals_are_the_same_every_time_and_need_two_requests():
    sample = Sample.one_each(np.array([1.0, 2.0, 9.0])).sorted()
    assert intervals(sample, 0) == intervals(sample, 0)
    assert intervals(Sample.one_each(np.array([1.0])), 0) == {}


def test_interval_of_the_mean_covers_as_often_as_it_says():
    # 95 % nominal; the percentile bootstrap at n = 40 is a little short. 400 trials: 0.90 is six standard
    # errors below 0.95.
    rng = np.random.default_rng(11)
    inside = 0
    for _ in range(400):
        low, high = intervals(Sample.one_each(rng.normal(10, 2, 40)).sorted(), 1)["mean"]
        inside += low <= 10 <= high
    assert 0.885 < inside / 400 <= 0.99


def test_gaps_of_one_request_are_not_independent_samples():
    # Twenty requests, each with a level of its own and a hundred equal gaps: the interval is that of twenty
    # values.
    rng = np.random.default_rng(2)
    levels = rng.normal(100, 10, 20)
    clustered = Sample(
        np.repeat(levels, 100), np.repeat(np.arange(20), 100), np.ones(2000, np.int64)
    ).sorted()
    plain = Sample.one_each(levels).sorted()
    wide, narrow = (np.diff(intervals(s, 0)["mean"])[0] for s in (clustered, plain))
    assert wide == pytest.approx(narrow, rel=1e-9)


def test_contrast_of_a_run_with_itself_and_with_its_double():
    values = np.random.default_rng(0).gamma(3, 10, 60)
    same = {c.statistic: c for c in contrasts(Sample.one_each(values), Sample.one_each(values))}
    assert all(c.point == 1 and c.low < 1 < c.high for c in same.values())
    double = {c.statistic: c for c in contrasts(Sample.one_each(values), Sample.one_each(2 * values))}
    assert all(c.point == pytest.approx(2) and c.low > 1 for c in double.values() if c.statistic != "p99")


def test_contrast_without_values_says_nothing():
    assert contrasts(Sample.one_each(np.array([])), Sample.one_each(np.array([1.0]))) == []
    lonely = contrasts(Sample.one_each(np.array([1.0])), Sample.one_each(np.array([3.0])))
    assert [(c.point, c.low, c.high) for c in lonely] == [(3.0, None, None)] * 3
