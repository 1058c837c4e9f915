"""The cost of a step, fitted to steps that others disturbed."""

from __future__ import annotations

import pytest

from experiments.diagnosis.step_model import StepModel, fit_step_model
from tests.diagnosis.cases import CASES, HEALTHY, World, disturbed, poisson
from tests.diagnosis.world import MS, bundle


def test_a_machine_that_is_busy_half_of_the_time_does_not_change_what_a_step_costs():
    case = next(one for one in CASES if one.world.cost is disturbed)
    model = fit_step_model(bundle(case.world))
    assert model is not None
    assert model.fixed == pytest.approx(9 * MS, rel=0.15)
    assert model.per_token == pytest.approx(1.5 * MS, rel=0.15)
    full = model.fixed / (model.fixed + 16 * model.per_token)
    assert full == pytest.approx(9 / 33, rel=0.15)


def test_undisturbed_steps_give_their_cost_back():
    world = World(poisson(40, 20.0, 120, 40), noise=0.0, prepare_ns=0, sample_ns=0, between_ns=0)
    run = bundle(world)
    model = fit_step_model(run)
    assert model is not None
    assert model.fixed == pytest.approx(5 * MS, rel=0.01)
    assert model.per_token == pytest.approx(20_000, rel=0.03)
    cost = model.cost_ns(run.steps)
    assert cost == pytest.approx(run.steps.duration, rel=0.02)
    assert model.fixed_share(cost) == pytest.approx(len(cost) * 5 * MS / run.steps.duration.sum(), rel=0.02)


def test_too_few_steps_give_no_model_and_no_steps_no_share():
    assert fit_step_model(bundle(World(HEALTHY.traffic[:1]))) is not None
    assert fit_step_model(bundle(World([]))) is None
    assert StepModel(1.0, 1.0, 0.0, 0.0).fixed_share(bundle(World([])).steps.duration) == 0.0
