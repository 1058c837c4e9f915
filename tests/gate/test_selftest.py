"""``--self-test``: noise figures and error rates from a series of runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.gate.decision import Rule
from experiments.gate.scripts_runner import one_after_the_other
from experiments.gate.selftest import evaluate, play, self_test
from experiments.gate.tier2 import METRICS
from tests.gate.sides import ScriptedWall, calm, side


def series(sd: float, runs: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0.0, sd, runs) for name in METRICS}


def test_a_quiet_machine_has_no_false_alarm_and_needs_no_more_pairs() -> None:
    found = evaluate(series(0.02), "/tree", 100, [])
    assert found.false_alarm_rate == 0.0
    assert 0.0 < found.false_alarm_upper < 0.005
    assert found.caught_ten_percent >= 0.9
    assert found.looks == [10, 20, 30]
    noise = found.metrics[0]
    assert noise.run_sd == pytest.approx(0.02, rel=0.15)
    assert noise.pair_sd == pytest.approx(0.028, rel=0.2)
    assert noise.detectable[10] > noise.detectable[30] > 0.03
    assert "false alarms 0.00%" in found.text


def test_a_noisy_machine_is_told_to_run_more_pairs() -> None:
    rule = Rule()
    noisy = series(0.09)
    assert play(noisy, rule, 0.10, seed=1, replicates=200) < 0.9
    assert play(noisy, replace(rule, looks=(10, 30, 60)), 0.20, seed=1, replicates=200) > 0.9
    assert evaluate(noisy, "/tree", 100, []).looks[-1] > 30


def test_drift_and_likeness_of_neighbours_are_reported() -> None:
    drifting = {name: np.linspace(0.0, 0.2, 100) for name in METRICS}
    noise = evaluate(drifting, "/tree", 50, []).metrics[0]
    assert noise.drift == pytest.approx(0.105, abs=0.01)
    assert noise.autocorrelation is not None
    assert noise.autocorrelation > 0.9


def test_it_measures_a_folder_against_itself() -> None:
    run = ScriptedWall(sd=0.03)
    found = self_test(side("head", "/tree"), one_after_the_other(run), {"model": "m"}, 12, control=calm)
    assert found.pairs == 12
    assert found.usable_pairs == 12
    assert len(found.runs) == 24
    assert {name for name, _ in run.asked} == {"base", "head"}
