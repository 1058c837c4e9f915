"""Failures, Ctrl-C, kill and resume, void runs, contamination, divergent outputs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from engine.errors import InvalidInputError
from experiments.cells import CellOutcome
from experiments.ledger import Ledger
from experiments.models import SweepResult, Verdict
from experiments.schedule import check_fingerprint, read_schedule
from experiments.sweep import new_sweep
from tests.experiments.world import World, resume, run, spec_of


def test_a_failed_run_is_tried_once_more_and_its_reason_kept(tmp_path: Path) -> None:
    world = World(faults={"256": [RuntimeError("server died")]})
    result = run(world, tmp_path, spec_of(blocks=2, values="64,256"))
    assert result.status == "complete"
    assert all(cell.state == "DONE" for cell in result.cells)
    assert [cell.attempts for cell in result.cells if cell.level == 256] == [2, 1]
    assert any("RuntimeError: server died" in note for note in result.notes)


def test_a_level_the_engine_refuses_fails_alone(tmp_path: Path) -> None:
    world = World(faults={"64": [InvalidInputError("chunk_size", 64, "more")] * 9})
    result = run(world, tmp_path, spec_of(blocks=3, values="64,256"))
    first = result.levels[0]
    assert first.verdict is Verdict.FAILED
    assert "chunk_size=64" in first.failed
    assert first.runs == []
    assert [c.state for c in result.cells if c.level == 64] == ["FAILED", "SKIPPED", "SKIPPED"]
    assert sum(cell.level == 64 for cell, _ in world.seen) == 1
    assert result.levels[1].ratio["itl_p99"].n_blocks == 3
    assert result.status == "complete"


def test_a_late_failure_costs_a_block_not_the_level(tmp_path: Path) -> None:
    world = World()
    spec = spec_of(blocks=4, values="64,256")
    folder = new_sweep(spec, tmp_path, {})
    blown = [CellOutcome(state="FAILED", reason="oom")] * 2
    original = world.__call__

    def sometimes(cell, load):  # type: ignore[no-untyped-def]
        if cell.block == 2 and cell.level == 64 and blown:
            world.now += 1.0
            return blown.pop()
        return original(cell, load)

    from experiments.sweep import Sweep

    result = Sweep(folder, sometimes, control=world.control, clock=world.clock).run()
    assert result.levels[0].ratio["itl_p99"].n_blocks == 3
    assert result.levels[0].verdict is not Verdict.FAILED
    assert result.levels[1].ratio["itl_p99"].n_blocks == 4


def test_a_baseline_that_never_runs_ends_the_sweep(tmp_path: Path) -> None:
    world = World(faults={"2048": [RuntimeError("no model")] * 9})
    result = run(world, tmp_path, spec_of(blocks=3, values="64"))
    assert result.status == "failed"
    assert not result.valid
    assert "the baseline can't run: RuntimeError: no model" in result.invalid_reasons[0]
    assert len(world.seen) <= 3


def test_void_runs_are_kept_but_not_counted(tmp_path: Path) -> None:
    void = CellOutcome(state="VOID", run="bad", metrics={"itl_p99": 9999.0}, reason="2 of 40 requests failed")
    world = World(faults={"64": [void, void]})
    result = run(world, tmp_path, spec_of(blocks=3, values="64"))
    cells = [cell for cell in result.cells if cell.level == 64]
    assert [cell.state for cell in cells] == ["VOID", "DONE", "DONE"]
    assert cells[0].metrics["itl_p99"] == 9999.0
    assert result.levels[0].ratio["itl_p99"].n_blocks == 2
    assert (result.levels[0].medians["itl_p99"] or 0) < 1000.0
    assert any("VOID: 2 of 40" in note for note in result.notes)


def test_ctrl_c_keeps_what_was_measured_and_resume_completes_the_design(tmp_path: Path) -> None:
    world = World(interrupt_at=9)
    spec = spec_of(blocks=3)
    folder = new_sweep(spec, tmp_path, {})
    cut = resume(world, folder)
    assert cut.status == "interrupted"
    assert len(cut.runs) == 9
    assert "--resume " + folder.name in cut.invalid_reasons[0]
    assert SweepResult.model_validate_json((folder / "sweep.json").read_bytes()).status == "interrupted"
    whole = resume(world, folder)
    assert whole.status == "complete"
    ran = Counter((cell.block, cell.position) for cell, _ in world.seen)
    assert ran == Counter({(block, position): 1 for block in range(3) for position in range(6)})
    assert [cell.state for cell in whole.cells] == ["DONE"] * 18


def test_a_crash_leaves_a_readable_record_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    world = World(interrupt_at=4)
    folder = new_sweep(spec_of(blocks=2), tmp_path, {})
    resume(world, folder)
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"t": "2026", "event": "finis')
    whole = resume(world, folder)
    assert whole.status == "complete"
    assert len(world.seen) == 12
    assert all(json.loads(line) for line in ledger.read_text().splitlines())


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    folder = new_sweep(spec_of(blocks=1), tmp_path, {})
    (folder / "ledger.jsonl").write_text("not json\n")
    with pytest.raises(InvalidInputError, match=r"ledger\.jsonl line 1"):
        Ledger(folder).read()


def test_resume_refuses_another_machine_naming_the_field(tmp_path: Path) -> None:
    folder = new_sweep(spec_of(blocks=1), tmp_path, {"git_commit": "abc", "cores": 2})
    stored = read_schedule(folder)
    check_fingerprint(stored, {"git_commit": "abc", "cores": 2})
    with pytest.raises(InvalidInputError, match="git_commit='def'"):
        check_fingerprint(stored, {"git_commit": "def", "cores": 2})


def test_an_interrupted_confirmation_is_finished_not_repeated(tmp_path: Path) -> None:
    world = World(effects={"64": 0.5}, interrupt_at=15)
    folder = new_sweep(spec_of(blocks=4, values="64", confirm=3, metric="itl_p99"), tmp_path, {})
    assert resume(world, folder).status == "interrupted"
    whole = resume(world, folder)
    assert whole.status == "complete"
    assert whole.confirmation is not None
    assert whole.confirmation.ratio["itl_p99"].n_blocks == 3
    ran = Counter((cell.phase, cell.block, cell.position) for cell, _ in world.seen)
    assert set(ran.values()) == {1}
    assert len(ran) == 12 + 6


def test_other_tokens_for_the_same_requests_are_counted_and_void_the_answer(tmp_path: Path) -> None:
    def outputs(cell, index):  # type: ignore[no-untyped-def]
        return f"{cell.nonce}/{index}/{'odd' if cell.level == 64 and index < 8 else ''}"

    result = run(World(outputs=outputs), tmp_path, spec_of(blocks=2, values="64,256"))
    same = result.equivalence
    assert same.per_level["64"] == (80, 64)
    assert same.per_level["256"] == (80, 80)
    assert (same.compared, same.identical) == (240, 224)
    assert not result.valid
    assert "level 64 gave other tokens for 16 of 80" in result.invalid_reasons[0]


def test_a_target_that_never_repeats_its_tokens_is_not_blamed_on_the_level(tmp_path: Path) -> None:
    counter = iter(range(10**6))
    result = run(World(outputs=lambda _c, _i: str(next(counter))), tmp_path, spec_of(blocks=2, values="64"))
    assert result.equivalence.identical == 0
    assert result.equivalence.per_level["baseline again"] == (80, 0)
    assert not any("other tokens" in reason for reason in result.invalid_reasons)
    assert any("differ from the baseline's tokens" in note for note in result.notes)


def test_a_moving_control_marks_its_block_and_nothing_is_dropped(tmp_path: Path) -> None:
    class Busy(World):
        def control(self) -> float:
            return 3.6 if len(self.seen) in (7, 8) else 3.0

    world = Busy()
    result = run(world, tmp_path, spec_of(blocks=3))
    assert result.contaminated_blocks == [1]
    assert result.levels[0].ratio["itl_p99"].n_blocks == 3
    assert any("contaminated: block 1" in note for note in result.notes)
    again = resume(world, tmp_path / result.id)
    assert again.contaminated_blocks == [1]


def test_a_restless_machine_is_judged_by_its_own_spread(tmp_path: Path) -> None:
    """A control that always moves by a tenth marks no block; one that doubles still marks its own."""

    class Restless(World):
        def control(self) -> float:
            return 6.0 if len(self.seen) in (7, 8) else 3.0 + 0.3 * (len(self.seen) % 3)

    result = run(Restless(), tmp_path, spec_of(blocks=4))
    assert result.contaminated_blocks == [1]
    assert result.control_tolerance is not None
    assert 0.05 < result.control_tolerance <= 0.30


def test_the_study_holds_one_trial_a_run_and_stale_ones_are_closed(tmp_path: Path) -> None:
    world = World(faults={"64": [RuntimeError("died")]}, interrupt_at=5)
    folder = new_sweep(spec_of(blocks=2, values="64,256"), tmp_path, {})
    resume(world, folder)
    result = resume(world, folder)
    study = optuna.load_study(
        study_name=folder.name, storage=JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    )
    states = Counter(trial.state.name for trial in study.trials)
    assert states == {"COMPLETE": 8, "FAIL": 2}
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert {trial.user_attrs["run"] for trial in done} == set(result.runs)
    assert {trial.params["chunk_size"] for trial in done} == {"64", "256", "2048"}
    assert {trial.user_attrs["seed"] for trial in done} == {cell.seed for cell in result.cells}
    assert study.user_attrs["metric"] == "chat/stall_p90"
    assert study.direction.name == "MINIMIZE"
