"""The rule of tier 2: exact p-values, four answers, metamorphic checks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments.gate.decision import Rule, decide, upper_signed_rank_p
from experiments.gate.models import GateVerdict

RULE = Rule()


def logs(median: float, sd: float, pairs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(math.log1p(median), sd, pairs)


@pytest.mark.parametrize("pairs", [10, 12, 20])
def test_p_is_scipys_exact_signed_rank(pairs: int) -> None:
    for seed in range(20):
        values = logs(0.02, 0.05, pairs, seed)
        expected = stats.wilcoxon(values, alternative="greater", method="exact").pvalue
        assert math.isclose(upper_signed_rank_p(values), expected, rel_tol=1e-9)


def test_the_first_look_is_the_fewest_pairs_that_can_fail() -> None:
    """1 / 2**n is the smallest p of n pairs; the bound over three looks and three metrics is 0.0011."""
    bound = RULE.fail_alpha / len(RULE.looks) / 3
    assert upper_signed_rank_p(np.full(10, 0.1) + np.arange(10) * 1e-4) <= bound
    assert upper_signed_rank_p(np.full(9, 0.1) + np.arange(9) * 1e-4) > bound


def test_equal_values_and_zeros_never_make_p_smaller() -> None:
    assert upper_signed_rank_p(np.zeros(10)) > 0.4
    assert upper_signed_rank_p(np.array([])) == 1.0
    assert upper_signed_rank_p(np.full(10, 0.1)) == pytest.approx(2**-10)
    half = np.array([0.1] * 5 + [-0.1] * 5)
    assert upper_signed_rank_p(half) > 0.4


def test_a_clear_slow_down_fails_and_names_its_metric() -> None:
    verdict, findings = decide({"itl": logs(0.2, 0.02, 10), "ttft": logs(0.0, 0.02, 10)}, RULE)
    assert verdict is GateVerdict.FAIL
    assert {f.name: f.verdict for f in findings} == {"itl": GateVerdict.FAIL, "ttft": GateVerdict.PASS}
    assert findings[0].ratio == pytest.approx(1.2, abs=0.03)


def test_no_change_passes_and_noise_is_inconclusive() -> None:
    assert decide({"itl": logs(0.0, 0.02, 10)}, RULE)[0] is GateVerdict.PASS
    verdict, (finding,) = decide({"itl": logs(0.06, 0.15, 10)}, RULE)
    assert verdict is GateVerdict.INCONCLUSIVE
    assert finding.mde is not None
    assert finding.mde > 0.10


def test_significant_but_small_never_fails() -> None:
    """4 % at no noise: p is as small as it gets, but below the relevant 5 %."""
    verdict, _ = decide({"itl": logs(0.04, 0.001, 30)}, RULE)
    assert verdict is GateVerdict.PASS


def test_a_gain_passes() -> None:
    assert decide({"itl": logs(-0.3, 0.05, 10)}, RULE)[0] is GateVerdict.PASS


samples = st.lists(st.floats(-0.3, 0.3), min_size=10, max_size=30)


@given(samples)
def test_swapping_the_sides_negates_the_effect_and_never_fails_both_ways(values: list[float]) -> None:
    x = np.array(values)
    there, back = decide({"m": x}, RULE), decide({"m": -x}, RULE)
    assert there[1][0].ratio is not None
    assert back[1][0].ratio is not None
    assert math.isclose(there[1][0].ratio * back[1][0].ratio, 1.0, rel_tol=1e-9)
    assert not (there[0] is GateVerdict.FAIL and back[0] is GateVerdict.FAIL)


@given(samples)
def test_duplicating_every_pair_never_turns_a_pass_into_a_fail(values: list[float]) -> None:
    if decide({"m": np.array(values)}, RULE)[0] is GateVerdict.PASS:
        assert decide({"m": np.array(values * 2)}, RULE)[0] is not GateVerdict.FAIL


@given(samples, st.floats(0.01, 0.5))
def test_a_slower_head_is_never_judged_more_kindly(values: list[float], more: float) -> None:
    order = [GateVerdict.PASS, GateVerdict.INCONCLUSIVE, GateVerdict.FAIL]
    x = np.array(values)
    assert order.index(decide({"m": x + more}, RULE)[0]) >= order.index(decide({"m": x}, RULE)[0])


def test_scaling_all_times_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    base, head = rng.lognormal(2.0, 0.05, 20), rng.lognormal(2.05, 0.05, 20)
    one = decide({"m": np.log(head / base)}, RULE)
    two = decide({"m": np.log(1.4 * head / (1.4 * base))}, RULE)
    assert one[0] is two[0]
    assert one[1][0].p_slower == pytest.approx(two[1][0].p_slower)


def test_a_uniform_slow_down_of_all_metrics_is_not_normalised_away() -> None:
    found = {name: logs(0.15, 0.02, 10, seed) for seed, name in enumerate(("a", "b", "c"))}
    verdict, findings = decide(found, RULE)
    assert verdict is GateVerdict.FAIL
    assert {f.verdict for f in findings} == {GateVerdict.FAIL}
