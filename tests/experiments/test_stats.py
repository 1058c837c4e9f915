"""The statistics against oracles (scipy, published tables) and metamorphic rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from experiments.models import Verdict
from experiments.stats import (
    holm,
    interval,
    judge,
    minimum_detectable_effect,
    pooled_sd,
    trend,
    within_block_slopes,
)

logs = st.lists(st.floats(-1.0, 1.0, allow_nan=False).map(lambda x: round(x, 6)), min_size=2, max_size=16)
SWAPPED = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}


def test_small_samples_use_student_t() -> None:
    sample = [0.10, 0.12, 0.08, 0.15]
    estimate = interval(sample)
    expected = scipy_stats.ttest_1samp(sample, 0.0)
    low, high = expected.confidence_interval(0.95)
    assert estimate is not None
    assert estimate.point == pytest.approx(np.mean(sample))
    assert (estimate.low, estimate.high) == pytest.approx((low, high))
    assert estimate.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("size", [10, 13, 20])
def test_large_samples_use_the_exact_signed_rank_test(size: int) -> None:
    sample = np.random.default_rng(size).normal(0.03, 0.05, size)
    estimate = interval(sample)
    expected = scipy_stats.wilcoxon(sample, method="exact")
    walsh = [(a + b) / 2 for i, a in enumerate(sample) for b in sample[i:]]
    assert estimate is not None
    assert estimate.p == pytest.approx(expected.pvalue)
    assert estimate.point == pytest.approx(np.median(walsh))
    # The interval is the set of shifts that the test does not refuse.
    for shift, inside in ((estimate.low + 1e-9, True), (estimate.low - 1e-9, False)):
        refused = scipy_stats.wilcoxon(sample - shift, method="exact").pvalue < 0.05
        assert refused is not inside


def test_no_interval_below_two_blocks() -> None:
    assert interval([]) is None
    assert interval([0.2]) is None
    assert judge([0.2], higher_is_better=True, delta=0.05)[0] is Verdict.INCONCLUSIVE


def test_a_target_that_repeats_itself_exactly() -> None:
    assert judge([0.0, 0.0, 0.0], higher_is_better=True, delta=0.05)[0] is Verdict.EQUIVALENT
    assert judge([0.2, 0.2, 0.2], higher_is_better=True, delta=0.05)[0] is Verdict.BETTER
    assert judge([0.01, 0.01, 0.01], higher_is_better=True, delta=0.05)[0] is Verdict.EQUIVALENT


def test_significant_but_smaller_than_delta_is_not_better() -> None:
    verdict, _reason = judge([0.04, 0.041, 0.039, 0.0405], higher_is_better=True, delta=0.05)
    assert verdict is Verdict.EQUIVALENT


def test_wide_interval_is_inconclusive_not_equal() -> None:
    verdict, reason = judge([0.2, -0.2, 0.1, -0.15], higher_is_better=True, delta=0.05)
    assert verdict is Verdict.INCONCLUSIVE
    assert "differ too much" in reason


def test_direction_decides_the_side() -> None:
    slower = [0.2, 0.21, 0.19, 0.22]
    assert judge(slower, higher_is_better=False, delta=0.05)[0] is Verdict.WORSE
    assert judge(slower, higher_is_better=True, delta=0.05)[0] is Verdict.BETTER


@given(logs)
def test_swapping_the_arms_swaps_the_verdict(sample: list[float]) -> None:
    one, _ = judge(sample, higher_is_better=False, delta=0.05)
    other, _ = judge([-x for x in sample], higher_is_better=False, delta=0.05)
    assert other is SWAPPED.get(one, one)


@given(logs)
def test_the_interval_holds_the_estimate_and_widens_with_confidence(sample: list[float]) -> None:
    narrow, wide = interval(sample, 0.90), interval(sample, 0.95)
    assert narrow is not None
    assert wide is not None
    assert wide.low <= narrow.low <= narrow.point <= narrow.high <= wide.high


@given(logs)
def test_repeating_every_block_never_turns_a_finding_round(sample: list[float]) -> None:
    one, _ = judge(sample, higher_is_better=False, delta=0.05)
    twice, _ = judge(sample * 2, higher_is_better=False, delta=0.05)
    assert {one, twice} != {Verdict.BETTER, Verdict.WORSE}


def test_holm_matches_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_value_and_bonferroni(values: list[float]) -> None:
    for raw, adjusted in zip(values, holm(values), strict=True):
        assert raw <= adjusted <= min(1.0, raw * len(values)) + 1e-12 or adjusted <= 1.0
        assert adjusted >= raw


def test_minimum_detectable_effect_has_the_power_it_states() -> None:
    sd, blocks = 0.04, 8
    effect = minimum_detectable_effect(sd, blocks)
    assert effect is not None
    rng = np.random.default_rng(0)
    sample = rng.normal(math.log1p(effect), sd, (4000, blocks))
    seen = scipy_stats.ttest_1samp(sample, 0.0, axis=1).pvalue < 0.05
    assert abs(seen.mean() - 0.9) < 0.02


def test_minimum_detectable_effect_falls_with_blocks_and_rises_with_levels() -> None:
    values = [minimum_detectable_effect(0.04, n) for n in (3, 4, 8, 16)]
    assert values == sorted((v for v in values if v is not None), reverse=True)
    one, four = minimum_detectable_effect(0.04, 6), minimum_detectable_effect(0.04, 6, comparisons=4)
    assert one is not None
    assert four is not None
    assert four > one
    assert minimum_detectable_effect(0.04, 1) is None
    assert minimum_detectable_effect(math.nan, 6) is None
    assert minimum_detectable_effect(0.0, 6) == 0.0


def test_pooled_sd_ignores_the_levels_own_means() -> None:
    assert pooled_sd([[1.0, 1.2], [5.0, 5.2]]) == pytest.approx(math.sqrt(0.02))
    assert math.isnan(pooled_sd([[1.0], []]))


def test_trend_finds_the_drift_of_a_straight_line() -> None:
    found = trend([0, 2, 5, 9], [1.0, 1.02, 1.05, 1.09])
    assert found is not None
    assert found.total == pytest.approx(0.09)
    assert trend([0, 1], [1.0, 2.0]) is None


def test_slopes_inside_blocks_do_not_see_the_blocks_levels() -> None:
    rows = [[0.0, 0.1, 0.2], [5.0, 5.1, 5.2]]
    assert within_block_slopes([0, 1, 2], rows) == pytest.approx([0.1, 0.1])
