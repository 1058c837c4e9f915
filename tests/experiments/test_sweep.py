"""The sweeper against a simulated machine: verdicts, design, budget, confirmation, what is stored."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from experiments.cells import NoProgress
from experiments.models import Cell, SweepResult, Verdict
from tests.experiments.world import World, run, spec_of

FASTER = {"64": 0.5, "256": 0.6, "512": 0.8, "1024": 1.0, "2048": 1.0}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, SweepResult, Path]:
    root = tmp_path_factory.mktemp("runs")
    world = World(effects=FASTER)
    result = run(world, root, spec_of(blocks=6, metric="itl_p99"))
    return world, result, root / result.id


def test_planted_effects_get_their_verdicts(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    verdicts = {level.value: level.verdict for level in result.levels}
    assert verdicts == {
        64: Verdict.BETTER, 256: Verdict.BETTER, 512: Verdict.BETTER, 1024: Verdict.EQUIVALENT, 2048:
        Verdict.BASELINE,
    }  # fmt: skip
    assert result.best == 64
    assert result.valid, result.invalid_reasons


def test_intervals_hold_the_planted_ratio(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    for level in result.levels:
        ratio = level.ratio["itl_p99"]
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.low <= FASTER[str(level.value)] <= ratio.high


def test_latency_and_throughput_have_opposite_good_sides(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    first = result.levels[0]
    assert first.ratio["itl_p99"].verdict is Verdict.BETTER
    assert first.ratio["ttft_p50"].verdict is Verdict.WORSE
    assert first.ratio["output_tok_s"].verdict is Verdict.EQUIVALENT


def test_hypothesis_is_judged_from_the_data(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    held = {line.metric: line.held for line in result.hypothesis}
    assert held == {"chat/stall_p90": True, "ttft_p50": True, "goodput_ratio": False, "output_tok_s": True}


def test_blocks_are_complete_and_share_their_requests(planted: tuple[World, SweepResult, Path]) -> None:
    world, result, _folder = planted
    for block in range(6):
        cells = [cell for cell, _load in world.seen if cell.block == block]
        assert Counter(c.level for c in cells) == {64: 1, 256: 1, 512: 1, 1024: 1, 2048: 2}
        assert len({(c.seed, c.nonce) for c in cells}) == 1
        assert [c.position for c in cells] == list(range(6))
    assert len({c.seed for c in result.cells}) == 6
    orders = {tuple(c.level for c, _ in world.seen if c.block == block) for block in range(6)}
    assert len(orders) > 1


def test_every_run_gets_the_same_load(planted: tuple[World, SweepResult, Path]) -> None:
    world, _result, _folder = planted
    assert {(load.request_rate, load.num_prompts) for _cell, load in world.seen} == {(2.0, 40)}


def test_the_record_on_disk_is_the_result(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, folder = planted
    assert SweepResult.model_validate_json((folder / "sweep.json").read_bytes()) == result
    assert result.status == "complete"
    shape = json.loads(result.model_dump_json())
    assert {"factor", "baseline", "levels", "valid", "report", "runs"} <= shape.keys()
    assert {"value", "runs", "ratio", "verdict"} <= shape["levels"][0].keys()
    assert {"point", "low", "high"} <= shape["levels"][0]["ratio"]["itl_p99"].keys()
    assert len(shape["runs"]) == 36


def test_a_a_and_detectable_effect_come_with_the_result(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    assert result.aa.n_blocks == 6
    assert result.aa.point == pytest.approx(1.0, abs=0.05)
    assert result.mde is not None
    assert 0.01 < result.mde < 0.15
    assert result.drift is not None


def test_boundary_says_where_the_gain_ends(planted: tuple[World, SweepResult, Path]) -> None:
    _world, result, _folder = planted
    boundary = result.boundary
    assert boundary is not None
    assert boundary.better == [64, 256, 512]
    assert boundary.equivalent == [1024]
    assert "edge of the tested range" in boundary.text
    assert boundary.conditions["request_rate"] == 2.0


def test_identical_levels_are_never_better(tmp_path: Path) -> None:
    for seed in range(4):
        spec = spec_of(blocks=4, values="64,256", metric="itl_p99")
        result = run(World(sd=0.03, seed=seed), tmp_path, spec)
        assert all(level.verdict is not Verdict.BETTER for level in result.levels)
        assert result.best is None
        assert result.status == "complete"


def test_the_other_level_as_baseline_turns_every_ratio_and_verdict_round(tmp_path: Path) -> None:
    options = {"blocks": 6, "metric": "itl_p99", "values": "64,2048"}
    effects = {"64": 0.8}
    one = run(World(effects=effects, sd=0.0), tmp_path, spec_of(**options)).levels[0]
    two = run(World(effects=effects, sd=0.0), tmp_path, spec_of(**options, baseline="64")).levels[1]
    assert (one.value, two.value) == (64, 2048)
    assert (one.verdict, two.verdict) == (Verdict.BETTER, Verdict.WORSE)
    point, turned = one.ratio["itl_p99"].point, two.ratio["itl_p99"].point
    assert point is not None
    assert turned is not None
    assert point * turned == pytest.approx(1.0)


def test_a_machine_slower_throughout_changes_no_ratio(tmp_path: Path) -> None:
    spec = spec_of(blocks=5, metric="itl_p99", values="64,256")
    calm = {"64": 0.8, "256": 1.0, "2048": 1.0}
    one = run(World(effects=calm, seed=3), tmp_path, spec)
    two = run(World(effects={name: 1.4 * x for name, x in calm.items()}, seed=3), tmp_path, spec)
    for left, right in zip(one.levels, two.levels, strict=True):
        assert left.verdict is right.verdict
        for part in ("point", "low", "high"):
            expected = getattr(left.ratio["itl_p99"], part)
            assert getattr(right.ratio["itl_p99"], part) == pytest.approx(expected)


def test_a_level_that_costs_goodput_is_worse_and_zero_goodput_is_a_number(tmp_path: Path) -> None:
    world = World(effects={"64": 2.0})
    result = run(world, tmp_path, spec_of(blocks=4, values="64,1024", metric="goodput_ratio", delta="10%"))
    ratio = result.levels[0].ratio["goodput_ratio"]
    assert result.levels[0].verdict is Verdict.WORSE
    assert ratio.point == pytest.approx((20 + 0.5) / (40 + 0.5), rel=1e-6)
    assert result.best is None


def test_the_budget_stops_at_the_end_of_a_block(tmp_path: Path) -> None:
    world = World(seconds=10.0)
    result = run(world, tmp_path, spec_of(budget="150s", values="64,256,512,1024"))
    assert result.status == "budget"
    assert len(world.seen) == 12
    assert world.now <= 150.0
    assert Counter(cell.state for cell in result.cells) == {"DONE": 12, "SKIPPED": 60}
    assert result.levels[0].ratio["itl_p99"].low is not None


def test_the_first_block_always_completes(tmp_path: Path) -> None:
    world = World(seconds=10.0)
    result = run(world, tmp_path, spec_of(budget="5s", values="64,256,512,1024"))
    assert len(world.seen) == 6
    assert result.status == "budget"
    assert not result.valid
    assert "an interval needs two" in result.invalid_reasons[0]
    assert result.levels[0].verdict is Verdict.INCONCLUSIVE
    assert result.levels[0].ratio["itl_p99"].point is not None


class Watcher(NoProgress):
    def __init__(self) -> None:
        self.left: list[float | None] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def cell_started(self, cell: Cell, remaining_s: float | None) -> None:
        self.left.append(remaining_s)


def test_the_time_left_holds_the_whole_of_a_block_that_has_begun(tmp_path: Path) -> None:
    watcher = Watcher()
    run(World(seconds=10.0), tmp_path, spec_of(budget="5s", values="64,256,512,1024"), watcher)
    assert watcher.left[1:] == [50.0, 40.0, 30.0, 20.0, 10.0]
    assert any("too small for one block" in note for note in watcher.notes)


def test_the_winner_is_measured_again_on_fresh_seeds(tmp_path: Path) -> None:
    world = World(effects={"256": 0.6, "64": 0.8})
    result = run(world, tmp_path, spec_of(blocks=4, confirm=3, values="64,256,1024", metric="itl_p99"))
    again = result.confirmation
    assert again is not None
    assert again.level == 256
    assert again.verdict is Verdict.BETTER
    assert again.ratio["itl_p99"].point == pytest.approx(0.6, rel=0.1)
    fresh = {cell.seed for cell in result.cells if cell.phase == "confirm"}
    assert len(fresh) == 3
    assert not fresh & {cell.seed for cell in result.cells if cell.phase == "sweep"}
    assert "on fresh seeds" in result.conclusion
    assert result.levels[1].ratio["itl_p99"].n_blocks == 4


def test_a_short_budget_measures_fewer_levels_rather_than_one_block(tmp_path: Path) -> None:
    spec = spec_of(budget="3m", request_rate=None, num_prompts=None, confirm=3)
    assert spec.levels == [64, 512, 2048]
    world = World(effects={"64": 0.1, "512": 0.3}, seconds=12.0)
    result = run(world, tmp_path, spec)
    assert result.design["blocks_done"] == 3
    assert result.levels[0].verdict is Verdict.BETTER
    assert world.now <= 180.0
    assert spec_of(budget="9m").levels == [64, 256, 512, 1024, 2048]
    assert spec_of(budget="3m", values="128,256,512,1024").levels == [128, 256, 512, 1024, 2048]


def test_the_conclusion_never_prints_a_silly_number(tmp_path: Path) -> None:
    result = run(World(sd=3.0), tmp_path, spec_of(blocks=2, values="64,512", metric="itl_p99"))
    assert result.mde is not None
    assert result.mde > 1.0
    assert "too noisy to see any effect below 2x" in result.conclusion


def test_room_for_the_confirmation_is_kept_inside_the_budget(tmp_path: Path) -> None:
    world = World(effects={"256": 0.5}, seconds=10.0)
    result = run(world, tmp_path, spec_of(budget="310s", confirm=3, metric="itl_p99"))
    assert result.confirmation is not None
    assert result.confirmation.ratio["itl_p99"].n_blocks == 3
    assert world.now <= 310.0


def test_the_load_is_calibrated_from_a_probe_of_the_baseline(tmp_path: Path) -> None:
    world = World()
    spec = spec_of(budget="9m", request_rate=None, num_prompts=None)
    result = run(world, tmp_path, spec)
    load = world.seen[0][1]
    assert load.request_rate == pytest.approx(0.75 * 2.0)
    assert result.calibration["capacity"] == 2.0
    assert result.calibration["runs"] == ["calibration"]
    assert 12 <= load.num_prompts <= 28
    assert f"--request-rate {load.request_rate:.4g}" in result.reproduce


def test_two_sweeps_never_share_a_folder(tmp_path: Path) -> None:
    spec = spec_of(blocks=2, values="64")
    one, two = run(World(), tmp_path, spec), run(World(), tmp_path, spec)
    assert one.id != two.id
    assert len(list(tmp_path.glob("sweep-*/sweep.json"))) == 2
