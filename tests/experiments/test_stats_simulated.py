"""False alarms and power of the verdicts, by seeded simulation of whole designs (2,000 sweeps a cell)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from experiments.models import Verdict
from experiments.stats import RANK_BLOCKS, Spread, holm, interval, judge, residual_spread
from tests.experiments import noise

REPLICATES = 2000
LEVELS = 4
"""Beside the baseline."""
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def sweep_runs(rng: np.random.Generator, model: Noise, blocks: int, effect: float) -> NDArray[np.float64]:
    """Logs of one simulated sweep, [block, run]: shuffled blocks, the levels, then the baseline twice; level
    0 slower by ``effect``."""
    runs = LEVELS + 2
    times = model(rng, runs * blocks).reshape(blocks, runs)
    for row in times:
        row[rng.permutation(runs)] = row.copy()
    times[:, 0] += effect
    return times


def verdicts(times: NDArray[np.float64], delta: float = 0.05) -> list[Verdict]:
    spread = None if len(times) >= RANK_BLOCKS else spread_of(times)
    return verdicts_of(times, delta, spread.times(1.5) if spread else None)


def spread_of(times: NDArray[np.float64]) -> Spread | None:
    names = [*map(str, range(LEVELS)), "", ""]
    return residual_spread(
        [(b, n, log) for b, row in enumerate(times) for n, log in zip(names, row, strict=True)]
    )


def verdicts_of(times: NDArray[np.float64], delta: float, known: Spread | None) -> list[Verdict]:
    ratios = [times[:, level] - times[:, LEVELS:].mean(axis=1) for level in range(LEVELS)]
    estimates = [interval(row, known=known) for row in ratios]
    adjusted = holm([e.p for e in estimates if e is not None])
    return [
        judge(row, higher_is_better=False, delta=delta, p_adjusted=p, known=known)[0]
        for row, p in zip(ratios, adjusted, strict=True)
    ]


def simulate(model: Noise, blocks: int, effect: float, seed: int, count: int) -> list[list[Verdict]]:
    rng = np.random.default_rng(seed)
    return [verdicts(sweep_runs(rng, model, blocks, effect)) for _ in range(count)]


def binomial_bound(rate: float, count: int) -> int:
    """Most successes that a true ``rate`` shows 999 times in 1,000."""
    return int(scipy_stats.binom.ppf(0.999, count, rate))


@pytest.mark.parametrize("model", [noise.quiet, noise.middling, noise.bad, noise.measured])
@pytest.mark.parametrize("blocks", [2, 4, 12])
def test_equal_levels_are_called_different_at_most_at_the_stated_rate(model: Noise, blocks: int) -> None:
    found = simulate(model, blocks, effect=0.0, seed=blocks, count=REPLICATES)
    alarms = sum(any(v in (Verdict.BETTER, Verdict.WORSE) for v in sweep) for sweep in found)
    assert alarms <= binomial_bound(0.05, REPLICATES)


@pytest.mark.parametrize("model", [noise.drifting, noise.spiky])
def test_drift_alone_and_spikes_alone_make_no_difference_of_equal_levels(model: Noise) -> None:
    found = simulate(model, 8, effect=0.0, seed=8, count=REPLICATES)
    alarms = sum(any(v in (Verdict.BETTER, Verdict.WORSE) for v in sweep) for sweep in found)
    assert alarms <= binomial_bound(0.05, REPLICATES)


@pytest.mark.parametrize("model", [noise.middling, noise.bad, noise.measured, noise.spiky])
def test_a_winner_among_equal_levels_does_not_survive_the_fresh_seeds(model: Noise) -> None:
    """What a reader is told to choose is BETTER in the blocks and again in three pairs on fresh seeds."""
    rng = np.random.default_rng(11)
    wrong = 0
    for _ in range(REPLICATES):
        times = sweep_runs(rng, model, 8, 0.0)
        found = verdicts(times)
        if Verdict.BETTER in found:
            spread = spread_of(times)
            pairs = model(rng, 6).reshape(3, 2)
            fresh = pairs[:, 1] - pairs[:, 0]
            again, _ = judge(fresh, higher_is_better=False, delta=0.05, known=spread and spread.times(2.0))
            wrong += again is Verdict.BETTER
    assert wrong <= binomial_bound(0.005, REPLICATES)


@pytest.mark.parametrize(("model", "blocks"), [(noise.middling, 16), (noise.measured, 5)])
def test_a_slowdown_of_ten_percent_is_caught_nine_times_in_ten(model: Noise, blocks: int) -> None:
    """Four levels share the error rate (Holm). The measured noise is that of the machine this was written
    on."""
    found = simulate(model, blocks, effect=float(np.log(1.10)), seed=1, count=REPLICATES)
    caught = sum(sweep[0] is Verdict.WORSE for sweep in found)
    assert caught >= 0.90 * REPLICATES
    assert not any(sweep[0] is Verdict.BETTER for sweep in found)


def test_power_rises_with_the_effect() -> None:
    caught = []
    for effect in (1.0, 1.05, 1.10, 1.20):
        found = simulate(noise.middling, 12, effect=float(np.log(effect)), seed=2, count=400)
        caught.append(sum(sweep[0] is Verdict.WORSE for sweep in found))
    assert caught == sorted(caught)
    assert caught[-1] >= 390


def test_equal_levels_are_proven_equal_when_the_machine_is_quiet() -> None:
    found = simulate(noise.quiet, 12, effect=0.0, seed=3, count=500)
    equal = sum(v is Verdict.EQUIVALENT for sweep in found for v in sweep)
    assert equal >= 0.9 * 500 * LEVELS


def test_an_effect_at_the_margin_is_rarely_called_equivalent() -> None:
    found = simulate(noise.middling, 12, effect=float(np.log(1.05)), seed=4, count=REPLICATES)
    wrong = sum(sweep[0] is Verdict.EQUIVALENT for sweep in found)
    assert wrong <= binomial_bound(0.05, REPLICATES)


@pytest.mark.parametrize("blocks", [4, 8, 12, 20])
def test_intervals_cover_the_truth_as_often_as_they_say(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    missed = 0
    for _ in range(REPLICATES):
        estimate = interval(rng.normal(0.1, 0.05, blocks))
        assert estimate is not None
        missed += not estimate.low <= 0.1 <= estimate.high
    assert missed <= binomial_bound(0.05, REPLICATES)


def test_the_rank_interval_shrugs_off_one_spiked_block() -> None:
    rng = np.random.default_rng(5)
    clean = rng.normal(0.0, 0.01, 12)
    spiked = clean.copy()
    spiked[3] += 1.0
    before, after = interval(clean), interval(spiked)
    assert before is not None
    assert after is not None
    assert abs(after.point - before.point) < 0.01
    assert abs(np.mean(spiked) - np.mean(clean)) > 0.08


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_a_level_noisier_than_the_rest_keeps_its_own_noise(blocks: int) -> None:
    """The residual of the design is dominated by the quiet levels; it must not lend them to the noisy one."""
    rng = np.random.default_rng(blocks)
    for _ in range(50):
        row = rng.normal(0.0, 0.5, blocks) + np.linspace(0.0, 3.0, blocks)
        alone, lent = interval(row), interval(row, known=Spread(0.0001, 12))
        assert alone is not None
        assert lent is not None
        assert lent.point == alone.point
        narrower = t_quantile(12) / t_quantile(blocks - 1)
        assert math.isclose(lent.high - lent.point, narrower * (alone.high - alone.point))


def test_the_measured_noise_is_what_it_is_said_to_be() -> None:
    """3.6 % from run to run, and neighbours resemble each other."""
    logs = np.log(np.loadtxt(noise.MEASURED))
    centred = logs - logs.mean()
    assert logs.size == 200
    assert float(np.std(logs, ddof=1)) == pytest.approx(0.036, abs=0.0005)
    assert float((centred[1:] * centred[:-1]).sum() / (centred**2).sum()) == pytest.approx(0.37, abs=0.01)


def t_quantile(degrees: int) -> float:
    return float(scipy_stats.t.ppf(0.975, degrees))


def test_the_residual_of_a_design_is_fishers() -> None:
    """Two blocks of two levels: the residual is the interaction contrast, (a - b - c + d) / 2, squared."""
    runs = [(0, "x", 1.0), (0, "y", 2.0), (1, "x", 4.0), (1, "y", 8.0)]
    spread = residual_spread(runs)
    assert spread is not None
    assert spread.degrees == 1
    assert math.isclose(spread.variance, ((1 - 2 - 4 + 8) / 2) ** 2)
    assert residual_spread(runs[:2]) is None
    assert residual_spread([]) is None
