"""How often the gate is wrong, by seeded simulation of whole gates: 2,000 a cell, three metrics, looks at
10, 20 and 30 pairs, no confirmation (it can only lower the alarms)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from experiments.gate.decision import Rule, decide
from experiments.gate.models import GateVerdict
from tests.experiments import noise

REPLICATES = 2000
METRICS = ("ttft", "itl", "tokens")
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]
RULE = Rule()


def play(model: Noise, effects: tuple[float, float, float], seed: int, count: int) -> Counter[str]:
    """Verdicts of ``count`` gates; pairs in random order; each metric has the machine's noise and its own."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    shift = np.log1p(np.array(effects))[:, None]
    for _ in range(count):
        runs = np.stack([model(rng, 60) for _ in METRICS]).reshape(3, 30, 2)
        sign = np.where(rng.random(30) < 0.5, 1.0, -1.0)
        logs = sign * (runs[:, :, 1] - runs[:, :, 0]) + shift
        verdict = GateVerdict.INCONCLUSIVE
        for look in RULE.looks:
            samples = {name: logs[i, :look] for i, name in enumerate(METRICS)}
            verdict, _ = decide(samples, RULE, describe=False)
            if verdict is not GateVerdict.INCONCLUSIVE:
                break
        found[verdict] += 1
    return found


def most(rate: float, count: int) -> int:
    """Most hits that a true ``rate`` shows 999 times in 1,000."""
    return int(stats.binom.ppf(0.999, count, rate))


@pytest.mark.parametrize("model", [noise.quiet, noise.middling, noise.bad, noise.measured])
def test_equal_revisions_fail_less_than_once_in_200(model: Noise) -> None:
    found = play(model, (0.0, 0.0, 0.0), 1, REPLICATES)
    assert found[GateVerdict.FAIL] <= most(0.005, REPLICATES)
    assert found[GateVerdict.PASS] >= 0.9 * REPLICATES


@pytest.mark.parametrize("model", [noise.middling, noise.measured])
def test_ten_percent_on_every_metric_is_caught(model: Noise) -> None:
    found = play(model, (0.10, 0.10, 0.10), 2, REPLICATES)
    assert found[GateVerdict.FAIL] >= 0.90 * REPLICATES


@pytest.mark.parametrize("model", [noise.middling, noise.measured])
def test_ten_percent_on_one_metric_is_caught_nine_times_in_ten(model: Noise) -> None:
    found = play(model, (0.0, 0.10, 0.0), 3, REPLICATES)
    assert found[GateVerdict.FAIL] >= 0.90 * REPLICATES


def test_two_percent_is_hardly_ever_called_a_regression() -> None:
    found = play(noise.middling, (0.02, 0.02, 0.02), 4, REPLICATES)
    assert found[GateVerdict.FAIL] <= most(0.01, REPLICATES)


def test_power_rises_with_the_slow_down() -> None:
    caught = [play(noise.middling, (e, 0.0, 0.0), 5, 300)[GateVerdict.FAIL] for e in (0.0, 0.05, 0.10, 0.20)]
    assert caught == sorted(caught)
    assert caught[-1] >= 294


@pytest.mark.parametrize("model", [noise.drifting, noise.spiky])
def test_drift_alone_and_spikes_alone_are_no_regression(model: Noise) -> None:
    found = play(model, (0.0, 0.0, 0.0), 6, REPLICATES)
    assert found[GateVerdict.FAIL] <= most(0.005, REPLICATES)


def test_all_base_then_all_head_would_have_failed_on_that_drift() -> None:
    """The trap that pairing avoids, so that the test above is known to test something."""
    times = np.arange(40) * 0.01
    verdict, _ = decide({"m": times[20:] - times[:20]}, RULE)
    assert verdict is GateVerdict.FAIL
    assert math.isclose(float(np.median(times[20:] - times[:20])), 0.2)
