"""Noisy bisection on queues of known capacity, the answers "outside", and growth told from load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from engine.errors import InvalidInputError
from experiments.capacity.command import make_capacity_spec
from experiments.capacity.models import CapacityResult, CapacitySpec, RateRun
from experiments.capacity.run import Capacity
from experiments.capacity.saturation import judge_stability
from experiments.capacity.search import CapacitySearch
from experiments.targets import TargetChoice
from tests.experiments.queues import play

ATTACHED = TargetChoice(kind="attach", name="http://h:1", base_url="http://h:1")
SERVERS, SERVICE_S, BOUND_S, TARGET = 4, 0.1, 0.2, 0.9


def spec_of(**options: Any) -> CapacitySpec:
    given: dict[str, Any] = {
        "slo": "ttft:200", "target_ratio": "90%", "workload": "chat", "lowest": 4.0, "highest": 160.0,
        "tolerance": "5%", "seconds": 20.0, "max_runs": 40, "budget": None, "seed": 1, "engine": {},
        "target": TargetChoice(), **options,
    }  # fmt: skip
    return make_capacity_spec(**given)


def queue(poisson: bool) -> Any:
    """A target on paper. With even arrivals its capacity is SERVERS / SERVICE_S = 40 requests/s."""

    def run(rate: float, seed: int) -> RateRun:
        count = max(20, round(rate * 20.0))
        sent, wait, end = play(rate, count, servers=SERVERS, service_s=SERVICE_S, seed=seed, poisson=poisson)
        good = int((wait <= BOUND_S).sum())
        stable = judge_stability(sent, wait, end).stable
        passed = good / count >= TARGET and stable is not False
        return RateRun(
            rate=rate, seed=seed, state="PASSED" if passed else "MISSED", good=good, offered=count,
            ratio=good / count, stable=stable,
        )  # fmt: skip

    return run


def find(run: Any, tmp_path: Path, **options: Any) -> CapacityResult:
    return Capacity(spec_of(**options), tmp_path, run).run()


@pytest.mark.parametrize("seed", range(5))
def test_a_known_capacity_is_found_within_five_percent(tmp_path: Path, seed: int) -> None:
    found = find(queue(poisson=False), tmp_path, seed=seed)
    assert found.answer == "rate"
    assert found.rate == pytest.approx(40.0, rel=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.rate <= found.high
    assert found.high / found.low <= 1.05**2 + 1e-6
    assert len(found.runs) <= 16


def test_random_arrivals_make_runs_differ_and_the_answer_is_where_half_of_them_pass(tmp_path: Path) -> None:
    run = queue(poisson=True)
    rates = [run(36.0, 10_000 + i).state for i in range(60)]
    assert 0 < rates.count("PASSED") < 60
    found = [find(run, tmp_path, seed=seed) for seed in range(6)]
    assert all(result.answer == "rate" for result in found)
    for result in found:
        assert result.rate is not None
        passes = [run(result.rate, 20_000 + i).state for i in range(60)].count("PASSED") / 60
        assert 0.1 < passes < 0.9
    spread = np.std([np.log(result.rate or 0.0) for result in found])
    assert spread < 0.05


def test_fractional_rates_are_tried(tmp_path: Path) -> None:
    found = find(queue(poisson=False), tmp_path)
    assert any(run.rate != round(run.rate) for run in found.runs)


def test_a_capacity_below_the_lowest_rate_is_said_so_and_no_number_is_given(tmp_path: Path) -> None:
    found = find(queue(poisson=False), tmp_path, lowest=60.0, highest=200.0)
    assert found.answer == "below the lowest tried"
    assert found.rate is None
    assert "not even at the lowest rate tried, 60" in found.text
    assert all(run.rate >= 60.0 for run in found.runs)


def test_a_capacity_above_the_highest_rate_is_said_so(tmp_path: Path) -> None:
    found = find(queue(poisson=False), tmp_path, lowest=1.0, highest=20.0)
    assert found.answer == "above the highest tried"
    assert found.rate is None
    assert all(run.rate <= 20.0 for run in found.runs)


def test_one_odd_run_does_not_decide() -> None:
    search = CapacitySearch(1.0, 100.0, 0.05)
    search.tell(5.0, False)  # a hiccup: the capacity is 20
    for _ in range(40):
        rate = search.next_rate()
        search.tell(rate, rate < 20.0)
        if search.done:
            break
    answer = search.answer()
    assert answer.where == "rate"
    assert answer.rate == pytest.approx(20.0, rel=0.05)


def test_without_a_pass_and_a_miss_there_is_no_rate() -> None:
    search = CapacitySearch(1.0, 100.0, 0.05)
    search.tell(10.0, True)
    assert search.answer().where == "unknown"


def test_the_range_comes_from_the_pace_of_a_closed_loop(tmp_path: Path) -> None:
    spec = spec_of(lowest=None, highest=None)
    found = Capacity(spec, tmp_path, queue(poisson=False), probe=lambda: 38.0).run()
    assert found.lowest == pytest.approx(3.8)
    assert found.highest == pytest.approx(95.0)
    assert found.rate == pytest.approx(40.0, rel=0.05)


def test_the_record_is_readable_after_every_run_and_after_ctrl_c(tmp_path: Path) -> None:
    inner, seen = queue(poisson=False), []

    def run(rate: float, seed: int) -> RateRun:
        if len(seen) == 3:
            (path,) = tmp_path.glob("capacity-*/capacity.json")
            assert len(json.loads(path.read_text())["runs"]) == 3
            raise KeyboardInterrupt
        seen.append(rate)
        return inner(rate, seed)

    found = find(run, tmp_path)
    assert found.status == "interrupted"
    (path,) = tmp_path.glob("capacity-*/capacity.json")
    assert CapacityResult.model_validate_json(path.read_bytes()) == found


def test_runs_that_do_not_count_are_kept_and_end_a_search_in_vain(tmp_path: Path) -> None:
    found = find(
        lambda rate, seed: RateRun(rate=rate, seed=seed, state="VOID", reason="late client"), tmp_path
    )
    assert found.status == "failed"
    assert found.answer == "unknown"
    assert [run.state for run in found.runs] == ["VOID"] * 5


def test_the_budget_ends_the_search(tmp_path: Path) -> None:
    now = [0.0]
    inner = queue(poisson=False)

    def run(rate: float, seed: int) -> RateRun:
        now[0] += 30.0
        return inner(rate, seed)

    found = Capacity(spec_of(budget="100s"), tmp_path, run, clock=lambda: now[0]).run()
    assert found.status == "budget"
    assert len(found.runs) == 3


def growth(rate: float, seed: int = 0) -> bool | None:
    sent, wait, end = play(rate, 400, servers=SERVERS, service_s=SERVICE_S, seed=seed, poisson=True)
    return judge_stability(sent, wait + 0.01, end).stable


def test_a_growing_queue_is_told_from_a_busy_one() -> None:
    assert growth(60.0) is False
    assert [growth(20.0, seed) for seed in range(20)] == [True] * 20
    assert sum(growth(34.0, seed) is False for seed in range(50)) <= 5


def test_too_few_requests_have_no_slope() -> None:
    few = np.arange(10.0)
    assert judge_stability(few, few, few).stable is None
    together = np.zeros(40)
    assert judge_stability(together, together + 1.0, together + 2.0).stable is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lowest": 5.0, "highest": 2.0}, "lowest"), ({"lowest": -1.0}, "lowest"), ({"slo": "ttft"}, "slo"),
        ({"target_ratio": "2"}, "target-ratio"), ({"workload": "none"}, "workload"),
        ({"seconds": 0.0}, "seconds"),
        ({"max_runs": 0}, "max-runs"), ({"budget": "soon"}, "budget"),
        ({"engine": {"block_size": 0}}, "block_size"),
        ({"target": ATTACHED, "engine": {"dtype": "auto"}}, "dtype"),
    ],
)  # fmt: skip
def test_mistakes_name_their_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        spec_of(**options)
    assert caught.value.field == field


def test_the_command_prints_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.capacity import runner
    from experiments.commands import register

    inner = queue(poisson=False)
    monkeypatch.setattr(runner.RateRunner, "__call__", lambda _self, rate, seed: inner(rate, seed))
    app = typer.Typer()
    register(app)
    words = [
        "capacity",
        "--workload",
        "chat",
        "--lowest",
        "4",
        "--highest",
        "160",
        "--slo",
        "ttft:200",
        "--json",
    ]
    done = CliRunner().invoke(app, [*words, "--runs-dir", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    found = CapacityResult.model_validate_json(done.stdout)
    assert found.rate == pytest.approx(40.0, rel=0.05)
    assert "requests/s" in done.stderr
