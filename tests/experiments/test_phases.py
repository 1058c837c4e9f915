"""Before and after the blocks: pilot, gain along an axis, proposals, storage, experiment files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.errors import InvalidInputError
from experiments.cells import CellOutcome
from experiments.experiment_file import read_experiment, shipped_experiments
from experiments.metric_info import metric_info
from experiments.models import Cell, Verdict
from experiments.proposals import propose
from experiments.request import make_spec, request_of_file
from experiments.schedule import read_schedule
from experiments.spec import Load
from experiments.views import planned_runs
from tests.experiments.world import World, resume, run, spec_of


class RateWorld(World):
    """The gain of level 64 shrinks with the rate and turns into a loss."""

    def __call__(self, cell: Cell, load: Load) -> CellOutcome:
        rate = float(cell.at) if cell.at is not None else load.request_rate or 0.0
        self.effects = {"64": {2.0: 0.5, 4.0: 1.0, 8.0: 2.0}.get(rate, 1.0)}
        return super().__call__(cell, load)


def test_the_pilot_says_beforehand_what_can_be_seen(tmp_path: Path) -> None:
    world = World(sd=0.03)
    result = run(world, tmp_path, spec_of(blocks=8, values="64,256", pilot=4))
    pilot = result.pilot
    assert pilot is not None
    assert pilot.pairs == 4
    assert 0.01 < pilot.sd < 0.08
    assert pilot.mde is not None
    assert result.mde is not None
    assert 0.3 < pilot.mde / result.mde < 3.0
    first = [cell for cell, _ in world.seen[:8]]
    assert {(cell.phase, cell.level) for cell in first} == {("pilot", 2048)}
    assert not {c.seed for c in first} & {c.seed for c, _ in world.seen[8:]}
    assert result.levels[0].ratio["itl_p99"].n_blocks == 8


@pytest.mark.parametrize(("options", "pairs"), [
    ({"blocks": 8}, 2), ({"blocks": 2}, 0), ({"budget": "9m"}, 2), ({"budget": "3m"}, 0),
    ({"blocks": 8, "pilot": 0}, 0),
])  # fmt: skip
def test_a_pilot_by_itself_takes_a_tenth_of_the_runs_or_none(options: dict[str, Any], pairs: int) -> None:
    assert spec_of(**options).pilot_pairs == pairs


def test_the_gain_is_followed_along_the_rate_until_it_reverses(tmp_path: Path) -> None:
    world = RateWorld()
    result = run(
        world, tmp_path, spec_of(blocks=4, values="64", metric="itl_p99", across="rate=2,4,8", delta="15%")
    )
    assert result.best == 64
    assert result.across_axis == "rate"
    verdicts = {point.value: point.verdict for point in result.across}
    assert verdicts == {2.0: Verdict.BETTER, 4.0: Verdict.EQUIVALENT, 8.0: Verdict.WORSE}
    assert "holds at 2" in result.conclusion
    assert "vanishes at 4" in result.conclusion
    assert "reverses at 8" in result.conclusion
    assert result.boundary is not None
    assert "Along rate" in result.boundary.text
    assert result.levels[0].ratio["itl_p99"].n_blocks == 4
    ran = Counter(cell.at for cell, _ in world.seen if cell.phase == "across")
    assert ran == Counter({2.0: 6, 4.0: 6, 8.0: 6})


def test_along_an_axis_nothing_runs_without_a_winner_and_a_cut_goes_on(tmp_path: Path) -> None:
    nothing = run(World(), tmp_path, spec_of(blocks=4, values="64", across="rate=1"))
    assert nothing.across == []
    world = World(effects={"64": 0.5}, interrupt_at=14)
    spec = spec_of(blocks=4, values="64", metric="itl_p99", across="workload=chat,random")
    cut = run(world, tmp_path, spec)
    assert cut.status == "interrupted"
    whole = resume(world, tmp_path / cut.id)
    assert [point.value for point in whole.across] == ["chat", "random"]
    ran = Counter((cell.phase, cell.block, cell.position) for cell, _ in world.seen)
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("text", ["rate", "rate=", "rate=-1", "speed=3", "workload=none"])
def test_an_axis_that_cant_be_used(text: str) -> None:
    with pytest.raises(InvalidInputError):
        spec_of(across=text)


def test_a_plan_counts_every_run_that_it_may_take() -> None:
    spec = spec_of(blocks=8, values="64,256", pilot=4, confirm=3, across="rate=1,2")
    planned = planned_runs(spec, 10.0)
    assert (planned.pilot, planned.blocks, planned.pairs, planned.along) == (8, 8, 3, 12)
    assert planned.total == 8 + 8 * 4 + 6 + 12
    assert (
        planned.text
        == "8 runs of the pilot + 8 blocks × 4 runs + 3 pairs on fresh seeds + 12 runs along the axis"
    )
    short = spec_of(budget="400s", values="64,256", pilot=2, confirm=3, across="rate=1,2")
    assert planned_runs(short, 10.0).total * 10.0 <= 400.0
    assert planned_runs(spec_of(budget="60s", values="64,256"), 10.0).along == 0


class Valley(World):
    """``itl_p99`` is least at 300: far from the baseline and from both ends."""

    def __call__(self, cell: Cell, load: Load) -> CellOutcome:
        import math

        self.effects = {str(cell.level): math.exp(0.3 * math.log(cell.level / 300.0) ** 2 - 1.1)}
        return super().__call__(cell, load)


def test_a_search_finds_the_valley_and_fresh_seeds_decide(tmp_path: Path) -> None:
    world = Valley()
    spec = spec_of(blocks=10, search="tpe", values="64,256,512,1024", metric="itl_p99", confirm=4)
    assert spec.search_range == (64, 2048)
    result = run(world, tmp_path, spec)
    assert result.confirmation is not None
    assert 150 <= result.best <= 600
    assert result.best == result.confirmation.level
    assert result.confirmation.verdict is Verdict.BETTER
    blocks = Counter(cell.block for cell, _ in world.seen if cell.phase == "sweep")
    assert set(blocks.values()) == {5}
    tried = {cell.level for cell, _ in world.seen}
    assert len(tried) > 8
    assert all(64 <= level <= 2048 for level in tried)


def test_an_interrupted_search_goes_on_as_it_would_have(tmp_path: Path) -> None:
    options: dict[str, Any] = {"blocks": 4, "search": "tpe", "values": "64,256,1024", "metric": "itl_p99"}
    straight, cut = Valley(sd=0.0), Valley(sd=0.0, interrupt_at=13)
    one = run(straight, tmp_path, spec_of(**options))
    two = run(cut, tmp_path, spec_of(**options))
    assert two.status == "interrupted"
    resume(cut, tmp_path / two.id)
    order = [(cell.block, cell.level) for cell, _ in straight.seen]
    assert [(cell.block, cell.level) for cell, _ in cut.seen] == order
    assert one.status == "complete"


def test_proposals_never_hold_the_baseline_or_a_level_twice() -> None:
    spec = spec_of(search="tpe", values="64,256,1024")
    levels = propose(spec, [], 6)
    assert len(levels) == len(set(levels)) == 6
    assert spec.baseline not in levels


@pytest.mark.parametrize(
    "options",
    [{"search": "random"}, {"param": "dtype", "search": "tpe"}, {"values": "64", "search": "tpe"}],
)
def test_what_cant_be_searched(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        spec_of(**options)


def test_the_study_goes_to_a_database_when_asked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    result = run(World(), tmp_path, spec_of(blocks=2, values="64", storage=url))
    study = optuna.load_study(study_name=result.id, storage=url)
    assert len(study.trials) == 6
    assert not (tmp_path / result.id / "optuna.journal").exists()
    with pytest.raises(InvalidInputError, match="storage"):
        run(World(), tmp_path, spec_of(blocks=1, values="64", storage="nosuch://x"))


@pytest.mark.parametrize("name", shipped_experiments())
def test_shipped_experiments_are_complete_questions(name: str) -> None:
    file = read_experiment(name)
    spec = make_spec(*request_of_file(file))
    assert spec.question == file.question
    assert spec.question.endswith("?")
    assert spec.blocks >= 8
    assert metric_info(spec.primary_metric) is not None
    assert spec.hypothesis


def test_there_is_one_for_the_factor_of_the_first_command() -> None:
    assert "chunk-size" in shipped_experiments()
    assert len(make_spec(*request_of_file(read_experiment("chunk-size"))).levels) >= 5


def test_a_file_of_ones_own_and_its_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'question = "Q?"\nfactor = "block_size"\nlevels = [8, 32]\nblocks = 3\nslo = "ttft:500"\n'
    )
    spec = make_spec(*request_of_file(read_experiment(str(path))))
    assert (spec.question, spec.levels, spec.blocks, spec.slo) == ("Q?", [8, 16, 32], 3, "ttft:500")
    for text, reason in [
        ('factor = "block_size"', "question"), ('question = "Q?"\nfactor = "x"\nspeed = 3', "speed"),
        ("x = ", "readable"),
    ]:  # fmt: skip
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=reason):
            read_experiment(str(path))
    with pytest.raises(InvalidInputError, match="chunk-size"):
        read_experiment("factors")


KILLED = """
import sys, time
from pathlib import Path
from tests.experiments.world import World, resume
class Slow(World):
    def __call__(self, cell, load):
        time.sleep(0.05)
        return super().__call__(cell, load)
resume(Slow(), Path(sys.argv[1]))
"""


def test_kill_9_in_the_middle_then_resume_completes_the_design(tmp_path: Path) -> None:
    from experiments.sweep import new_sweep

    folder = new_sweep(spec_of(blocks=4), tmp_path, {})
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], cwd=root, start_new_session=True)
    ledger, deadline = folder / "ledger.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and (
        not ledger.exists() or ledger.read_text().count('"event":"finished"') < 9
    ):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    already = ledger.read_text().count('"event":"finished"')
    assert 9 <= already < 24
    world = World()
    result = resume(world, folder)
    assert result.status == "complete"
    assert len(world.seen) == 24 - already
    cells = Counter((cell.block, cell.position) for cell in result.cells if cell.state == "DONE")
    assert cells == Counter({(block, position): 1 for block in range(4) for position in range(6)})
    assert len(read_schedule(folder).cells) == 24
