"""Run a sweep: the schedule first, then cell after cell, each written down before the next starts.

A budget stops it at block ends only, so the design stays balanced. Ctrl-C, a crash or kill -9 leave a
ledger that ``resume`` continues, finishing the block that was cut.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from engine.errors import InvalidInputError
from experiments.budget import Budget
from experiments.calibrate import MIN_BLOCKS, Calibration, RunProbe, calibrate
from experiments.cell_runner import BaselineFailedError, CellRunner
from experiments.cells import NoProgress, RunCell, SweepProgress
from experiments.conclusion import effect_text
from experiments.control import ControlKernel
from experiments.design import level_text, make_block, make_pairs, make_schedule, same_level
from experiments.ledger import Ledger
from experiments.models import Cell, SweepResult
from experiments.phases import across_cells, expected_text, judge_pilot, pilot_cells
from experiments.proposals import best_candidate, measured_levels, propose
from experiments.result import build_result
from experiments.schedule import SWEEP_FILE, StoredSchedule, read_schedule, write_schedule
from experiments.spec import SweepSpec
from experiments.trials import Trials
from workbench.atomic import write_json
from workbench.manifest import utc_now


class HasRoot(Protocol):
    """The part of a run store that a sweep needs: where its folder goes, beside the runs."""

    root: Path


def new_sweep(spec: SweepSpec, root: Path, fingerprint: Mapping[str, Any]) -> Path:
    """Make the folder of a new sweep and write its schedule. Never an existing folder: each sweep has its
    own id.

    Raises:
        InvalidInputError: the run store can't be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            folder = root / f"sweep-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
            try:
                folder.mkdir()
                break
            except FileExistsError:
                continue
    except OSError as error:
        raise InvalidInputError(
            "runs-dir", str(root), f"a folder that can be written ({error.strerror})"
        ) from None
    # A search knows only its first block; the ledger gets the later ones before they run.
    blocks = 1 if spec.search == "tpe" else spec.blocks
    cells = [*pilot_cells(spec), *make_schedule(spec.levels, spec.baseline, blocks, spec.seed)]
    stored = StoredSchedule(
        id=folder.name, created=utc_now(), spec=spec, fingerprint=dict(fingerprint), cells=cells
    )
    write_schedule(folder, stored)
    return folder


def run_sweep(
    spec: SweepSpec,
    store: HasRoot,
    run_cell: RunCell,
    progress: SweepProgress | None = None,
    *,
    probe: RunProbe | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    control: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SweepResult:
    """A new sweep under ``store.root``.

    Args:
        run_cell: runs one cell in a fresh target; see :class:`experiments.cells.RunCell`.
        probe: measures capacity when ``spec`` has no rate.
        fingerprint: what a resume must find unchanged (code revision, tool version, machine).
        control: the control kernel, in ms.
        clock: seconds, monotonic; the budget is counted on it.

    Returns:
        The record, also in ``sweep.json``. ``status`` tells how it ended: complete, budget, interrupted,
        failed.
    """
    folder = new_sweep(spec, store.root, fingerprint or {})
    return Sweep(folder, run_cell, progress, probe=probe, control=control, clock=clock).run()


class Sweep:
    """One sweep's folder in motion: new or resumed, the loop is the same and the ledger says what is left
    to do."""

    def __init__(
        self,
        folder: Path,
        run_cell: RunCell,
        progress: SweepProgress | None = None,
        *,
        probe: RunProbe | None = None,
        control: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        budget_s: float | None = None,
    ) -> None:
        """``budget_s``: instead of the spec's, for a resumed sweep. Counted from here."""
        stored = read_schedule(folder)
        self._folder = folder
        self._stored = stored
        self._spec = stored.spec
        self._progress: SweepProgress = progress or NoProgress()
        self._probe = probe
        self._ledger = Ledger(folder)
        self._state = self._ledger.read()
        self._budget = Budget(budget_s if budget_s is not None else self._spec.budget_s, clock)
        self._spent_before = sum(cell.seconds or 0.0 for cell in self._state.cells.values())
        self._cells = [*stored.cells, *self._state.planned]
        self._calibration = (
            Calibration.model_validate(self._state.calibration) if self._state.calibration else None
        )
        levels = self._spec.search_range or self._spec.levels
        trials = Trials(
            folder, stored.id, self._spec.factor, levels, self._spec.primary_metric, self._spec.seed,
            self._spec.storage,
        )  # fmt: skip
        self._runner = CellRunner(
            self._spec, self._ledger, self._state, trials, run_cell, self._progress,
            control or ControlKernel(), clock, saved=lambda: self._save("running"),
        )  # fmt: skip

    def run(self) -> SweepResult:
        """Run what is left. Ends with a readable ``sweep.json`` whatever happens, and never raises for a
        failed run."""
        status, trouble = "failed", []
        try:
            self._progress.planned(self._folder, self._cells)
            self._set_load()
            self._run_pilot()
            status = self._run_blocks()
            if status in ("complete", "budget"):
                self._confirm_winner()
                self._follow_the_gain()
        except KeyboardInterrupt:
            status = "interrupted"
            trouble = ["interrupted; continue with: workbench sweep --resume " + self._stored.id]
        except BaselineFailedError as error:
            trouble = [f"the baseline can't run: {error}"]
        except Exception as error:
            # The record must say how the sweep ended before the error goes on to its caller.
            self._save("failed", [f"{type(error).__name__}: {error}"])
            raise
        return self._save(status, trouble)

    def _set_load(self) -> None:
        if self._calibration is None:
            self._progress.note("calibrating the load" if self._probe else "load as given")
            self._calibration = calibrate(self._spec, self._probe, self._budget.elapsed())
            self._ledger.calibrated(self._calibration.model_dump(mode="json"))
        self._runner.load = self._calibration.load
        self._progress.note(self._calibration.text)
        block_s = self._run_seconds() * self._spec.runs_per_block
        if not self._budget.holds(block_s):
            self._progress.note(
                f"the budget is too small for one block; it runs all the same, about {block_s:.0f} s"
            )

    def _run_pilot(self) -> None:
        """The baseline against itself: what will the sweep be able to see? Said before it begins."""
        self._runner.run_open(self._of_phase("pilot"))
        blocks = self._affordable_blocks()
        pilot = judge_pilot(self._spec, self._now("pilot"), blocks)
        self._progress.note(pilot.text if pilot is not None else expected_text(self._spec, blocks))

    def _run_blocks(self) -> str:
        """All blocks of the design, or those that the budget holds. Returns the status."""
        if self._of_phase("confirm"):
            done = not any(self._runner.is_open(cell) for cell in self._of_phase("sweep"))
            return "complete" if done else "budget"
        for block in range(self._spec.blocks):
            cells = self._block(block)
            todo = [cell for cell in cells if self._runner.is_open(cell)]
            begun = len(todo) < len(cells)
            if todo and not begun and block > 0 and not self._budget.holds(self._block_cost(block, todo)):
                return "budget"
            if cells and cells[0] not in self._cells:
                self._plan(cells)
            for cell in todo:
                self._runner.run(cell, self._remaining_seconds())
            if todo and block + 1 < self._spec.blocks:
                self._tell_what_could_be_seen(block)
        return "complete"

    def _block(self, block: int) -> list[Cell]:
        """Cells of a block; those of a search's next block are proposed now."""
        cells = [cell for cell in self._of_phase("sweep") if cell.block == block]
        if cells or self._spec.search != "tpe":
            return cells
        levels = propose(self._spec, self._now("sweep"), len(self._spec.levels) - 1)
        return make_block(levels, self._spec.baseline, block, self._spec.seed)

    def _block_cost(self, block: int, cells: Sequence[Cell]) -> float:
        """Seconds that one more block needs, with the share of what follows the blocks kept back once there
        are enough of them."""
        runs = sum(1 for cell in cells if level_text(cell.level) not in self._runner.failures)
        if block >= MIN_BLOCKS and self._winner() is not None:
            runs += 2 * self._spec.confirm_blocks
            if self._spec.across is not None:
                runs += 2 * self._spec.across.pairs * len(self._spec.across.values)
        return runs * self._run_seconds()

    def _confirm_winner(self) -> None:
        """Measure the winner against the baseline on requests that no block has seen, when there is room
        for it."""
        spec = self._spec
        if not self._of_phase("confirm"):
            winner = self._winner()
            blocks = len({c.block for c in self._now("sweep") if c.state == "DONE"})
            if winner is None or not spec.confirm_blocks or blocks < MIN_BLOCKS:
                return
            pairs = spec.confirm_blocks
            while pairs >= 2 and not self._budget.holds(2 * pairs * self._run_seconds()):
                pairs -= 1
            if pairs < 2:
                self._progress.note("no time left to measure the winner again on fresh seeds")
                return
            self._plan(make_pairs(spec.baseline, winner, pairs, spec.blocks, spec.seed, "confirm"))
            self._progress.note(f"measuring {level_text(winner)} again on fresh seeds: {pairs} pairs")
        self._runner.run_open(self._of_phase("confirm"))

    def _follow_the_gain(self) -> None:
        """Measure the winner against the baseline along the axis, value after value while there is time."""
        if self._spec.across is None:
            return
        if not self._of_phase("across"):
            winner = self._winner()
            if winner is None:
                self._progress.note(f"no winner to follow along {self._spec.across.axis}")
                return
            self._plan(across_cells(self._spec, winner))
        for value in self._spec.across.values:
            cells = [cell for cell in self._of_phase("across") if cell.at == value]
            todo = [cell for cell in cells if self._runner.is_open(cell)]
            if todo and not self._budget.holds(len(todo) * self._run_seconds()):
                self._progress.note(f"no time left for {self._spec.across.axis} {level_text(value)}")
                return
            if todo:
                self._progress.note(f"{self._spec.across.axis} {level_text(value)}")
            self._runner.run_open(todo)

    def _winner(self) -> Any | None:
        """The level that the blocks single out (of a search: its candidate), not the baseline."""
        best = self._result("running").best
        if self._spec.search == "tpe" and best is None:
            best = best_candidate(self._spec, self._now("sweep"))
        return None if best is None or same_level(best, self._spec.baseline) else best

    def _plan(self, cells: Sequence[Cell]) -> None:
        self._ledger.planned(cells)
        self._cells += cells

    def _tell_what_could_be_seen(self, block: int) -> None:
        """After each block: the smallest effect that the design would show with the noise seen so far."""
        result = self._result("running")
        if result.mde is not None:
            self._progress.note(f"after {block + 1} blocks: {effect_text(result.mde)}")
        if block in result.contaminated_blocks:
            self._progress.note(f"block {block}: the control kernel moved, marked contaminated")

    def _of_phase(self, phase: str) -> list[Cell]:
        """Planned cells."""
        return [cell for cell in self._cells if cell.phase == phase]

    def _now(self, phase: str) -> list[Cell]:
        """Cells that have ended."""
        return [cell for cell in self._state.cells.values() if cell.phase == phase]

    def _run_seconds(self) -> float:
        return self._runner.seconds(self._calibration.run_s if self._calibration else 0.0)

    def _affordable_blocks(self) -> int:
        left, run_s = self._budget.left(), self._run_seconds()
        if left is None or run_s <= 0:
            return self._spec.blocks
        return max(1, min(self._spec.blocks, int(left / (run_s * self._spec.runs_per_block))))

    def _remaining_seconds(self) -> float | None:
        if self._spec.search == "tpe":
            return self._budget.left()
        todo = [cell.block for cell in self._of_phase("sweep") if self._runner.is_open(cell)]
        limit, run_s = self._budget.left(), self._run_seconds()
        if limit is None:
            return len(todo) * run_s
        # A block that has begun runs to its end, whatever the budget says.
        begun = todo.count(min(todo, default=0))
        return max(begun * run_s, min(len(todo) * run_s, limit))

    def _result(self, status: str, trouble: Sequence[str] = ()) -> SweepResult:
        cells, spec = self._cells, self._spec
        if status == "budget":
            skipped = {"state": "SKIPPED", "reason": "budget"}
            cells = [c.model_copy(update=skipped) if self._runner.is_open(c) else c for c in cells]
        if spec.search == "tpe":
            spec = spec.model_copy(update={"levels": measured_levels(spec, cells)})
        return build_result(
            sweep_id=self._stored.id,
            created=self._stored.created,
            status=status,
            spec=spec,
            schedule=cells,
            state=self._state,
            calibration=self._calibration,
            failures=self._runner.failures,
            elapsed_s=self._spent_before + self._budget.elapsed(),
            trouble=trouble,
        )

    def _save(self, status: str, trouble: Sequence[str] = ()) -> SweepResult:
        result = self._result(status, trouble)
        write_json(self._folder / SWEEP_FILE, result.model_dump(mode="json"))
        return result
