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
from statistics import fmean
from typing import Any, Protocol

from engine.errors import InvalidInputError
from experiments.budget import Budget
from experiments.calibrate import MIN_BLOCKS, Calibration, RunProbe, calibrate
from experiments.cells import CellOutcome, NoProgress, RunCell, SweepProgress, outputs_digest
from experiments.conclusion import effect_text
from experiments.control import ControlKernel
from experiments.design import level_text, make_confirmation, make_schedule, same_level
from experiments.ledger import Ledger, cell_key
from experiments.models import Cell, SweepResult
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
    cells = make_schedule(spec.levels, spec.baseline, spec.blocks, spec.seed)
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
        self._run_cell = run_cell
        self._progress: SweepProgress = progress or NoProgress()
        self._probe = probe
        self._control = control or ControlKernel()
        self._clock = clock
        self._ledger = Ledger(folder)
        self._state = self._ledger.read()
        self._budget = Budget(budget_s if budget_s is not None else self._spec.budget_s, clock)
        self._spent_before = sum(cell.seconds or 0.0 for cell in self._state.cells.values())
        self._cells = [*stored.cells, *self._state.confirmation]
        self._calibration = (
            Calibration.model_validate(self._state.calibration) if self._state.calibration else None
        )
        self._failures = self._known_failures()
        self._trials = Trials(
            folder,
            stored.id,
            self._spec.factor,
            self._spec.levels,
            self._spec.primary_metric,
            self._spec.seed,
        )

    def run(self) -> SweepResult:
        """Run what is left. Ends with a readable ``sweep.json`` whatever happens, and never raises for a
        failed run."""
        status, trouble = "failed", []
        try:
            self._progress.planned(self._folder, self._cells)
            if self._calibration is None:
                self._progress.note("calibrating the load" if self._probe else "load as given")
                self._calibration = calibrate(self._spec, self._probe, self._budget.elapsed())
                self._ledger.calibrated(self._calibration.model_dump(mode="json"))
            self._progress.note(self._calibration.text)
            self._save("running")
            status = self._run_blocks()
            if status in ("complete", "budget"):
                self._confirm_winner()
        except KeyboardInterrupt:
            status = "interrupted"
            trouble = ["interrupted; continue with: workbench sweep --resume " + self._stored.id]
        except _BaselineFailedError as error:
            trouble = [f"the baseline can't run: {error}"]
        except Exception as error:
            # The record must say how the sweep ended before the error goes on to its caller.
            self._save("failed", [f"{type(error).__name__}: {error}"])
            raise
        return self._save(status, trouble)

    def _run_blocks(self) -> str:
        """All blocks of the design, or those that the budget holds. Returns the status."""
        if any(cell.phase == "confirm" for cell in self._cells):
            return "complete" if self._is_complete() else "budget"
        for block in range(self._spec.blocks):
            cells = [cell for cell in self._stored.cells if cell.block == block]
            todo = [cell for cell in cells if self._is_open(cell)]
            begun = len(todo) < len(cells)
            if todo and not begun and block > 0 and not self._budget.holds(self._block_cost(block, todo)):
                return "budget"
            for cell in todo:
                self._run(cell)
            if todo and block + 1 < self._spec.blocks:
                self._tell_what_could_be_seen(block)
        return "complete"

    def _block_cost(self, block: int, cells: Sequence[Cell]) -> float:
        """Seconds that one more block needs, with the confirmation's share kept back once there are enough
        blocks."""
        runs = sum(1 for cell in cells if level_text(cell.level) not in self._failures)
        if block >= MIN_BLOCKS and self._spec.confirm_blocks and self._winner() is not None:
            runs += 2 * self._spec.confirm_blocks
        return runs * self._run_seconds()

    def _confirm_winner(self) -> None:
        """Measure the winner against the baseline on requests that no block has seen, when there is room
        for it."""
        spec = self._spec
        if not any(cell.phase == "confirm" for cell in self._cells):
            winner = self._winner()
            blocks = len({c.block for c in self._state.cells.values() if c.state == "DONE"})
            if winner is None or not spec.confirm_blocks or blocks < MIN_BLOCKS:
                return
            pairs = spec.confirm_blocks
            while pairs >= 2 and not self._budget.holds(2 * pairs * self._run_seconds()):
                pairs -= 1
            if pairs < 2:
                self._progress.note("no time left to measure the winner again on fresh seeds")
                return
            planned = make_confirmation(winner, spec.baseline, pairs, spec.blocks, spec.seed)
            self._ledger.confirming(planned)
            self._cells += planned
            self._progress.note(f"measuring {level_text(winner)} again on fresh seeds: {pairs} pairs")
        for cell in [cell for cell in self._cells if cell.phase == "confirm"]:
            if self._is_open(cell):
                self._run(cell)

    def _winner(self) -> Any | None:
        best = self._result("running").best
        return None if best is None or same_level(best, self._spec.baseline) else best

    def _run(self, cell: Cell) -> None:
        """Run a cell, again after a failure; write its end to the ledger and the record to ``sweep.json``."""
        name = level_text(cell.level)
        if name in self._failures:
            self._finish(cell.model_copy(update={"state": "SKIPPED", "reason": self._failures[name]}), None)
            return
        self._progress.cell_started(cell, self._remaining_seconds())
        for attempt in range(1, self._spec.retries + 2):
            self._ledger.started(cell, attempt)
            trial = self._trials.start(cell, attempt)
            before, start = self._control(), self._clock()
            outcome = self._attempt(cell)
            seconds, after = self._clock() - start, self._control()
            self._trials.finish(trial, outcome)
            if outcome.state == "DONE" or not outcome.retryable or attempt > self._spec.retries:
                break
            self._ledger.repeated(cell, attempt, outcome)
            self._state.attempts.append(
                {
                    "cell": list(cell_key(cell)),
                    "level": cell.level,
                    "state": outcome.state,
                    "reason": outcome.reason,
                }
            )
            self._progress.note(f"{name}: {outcome.reason}; trying again")
        ended = cell.model_copy(
            update={
                "state": outcome.state,
                "run": outcome.run,
                "reason": outcome.reason,
                "metrics": dict(outcome.metrics),
                "output_sha256": outputs_digest(outcome.outputs),
                "attempts": attempt,
                "seconds": round(seconds, 3),
                "control_ms": [round(before, 4), round(after, 4)],
                "flagged": list(outcome.flagged),
            }
        )
        self._finish(ended, outcome)
        self._give_up_if_it_never_runs(ended, outcome)

    def _attempt(self, cell: Cell) -> CellOutcome:
        if self._calibration is None:
            raise RuntimeError("a cell was run before the load was set")
        try:
            return self._run_cell(cell, self._calibration.load)
        except InvalidInputError as error:
            return CellOutcome(state="FAILED", reason=str(error), retryable=False)
        except Exception as error:
            # Whatever a target or its harness does wrong costs this run and is told as its reason, never
            # the sweep.
            return CellOutcome(state="FAILED", reason=f"{type(error).__name__}: {error}".splitlines()[0])

    def _finish(self, cell: Cell, outcome: CellOutcome | None) -> None:
        self._ledger.finished(cell, outcome)
        self._state.cells[cell_key(cell)] = cell
        self._state.outputs[cell_key(cell)] = dict(outcome.outputs) if outcome else {}
        if outcome and outcome.context and not self._state.context:
            self._state.context = dict(outcome.context)
        self._save("running")
        self._progress.cell_finished(cell)

    def _give_up_if_it_never_runs(self, cell: Cell, outcome: CellOutcome) -> None:
        """A level that has never given a result is not tried in later blocks; the baseline ends the sweep."""
        if outcome.state == "DONE" or (outcome.state == "VOID" and outcome.retryable):
            return
        if any(c.state == "DONE" and same_level(c.level, cell.level) for c in self._state.cells.values()):
            return
        if same_level(cell.level, self._spec.baseline):
            raise _BaselineFailedError(outcome.reason)
        self._failures[level_text(cell.level)] = outcome.reason

    def _tell_what_could_be_seen(self, block: int) -> None:
        """After each block: the smallest effect that the design would show with the noise seen so far."""
        result = self._result("running")
        if result.mde is not None:
            self._progress.note(f"after {block + 1} blocks: {effect_text(result.mde)}")
        if block in result.contaminated_blocks:
            self._progress.note(f"block {block}: the control kernel moved, marked contaminated")

    def _known_failures(self) -> dict[str, str]:
        """Levels that a ledger read back shows as given up: failed, and never with a result."""
        cells = self._state.cells.values()
        ran = {level_text(cell.level) for cell in cells if cell.state == "DONE"}
        bad = ("FAILED", "SKIPPED")
        failed = {level_text(cell.level): cell.reason for cell in cells if cell.state in bad}
        return {name: reason for name, reason in failed.items() if name not in ran}

    def _is_open(self, cell: Cell) -> bool:
        return cell_key(cell) not in self._state.cells

    def _is_complete(self) -> bool:
        return not any(self._is_open(cell) for cell in self._stored.cells)

    def _run_seconds(self) -> float:
        """Wall time of a run: as observed, the calibration's guess before the first."""
        seen = [c.seconds for c in self._state.cells.values() if c.seconds is not None]
        if seen:
            return fmean(seen)
        return self._calibration.run_s if self._calibration else 0.0

    def _remaining_seconds(self) -> float | None:
        left = sum(1 for cell in self._stored.cells if self._is_open(cell)) * self._run_seconds()
        limit = self._budget.left()
        return left if limit is None else min(left, max(limit, 0.0))

    def _result(self, status: str, trouble: Sequence[str] = ()) -> SweepResult:
        cells = self._cells
        if status == "budget":
            skipped = {"state": "SKIPPED", "reason": "budget"}
            cells = [cell.model_copy(update=skipped) if self._is_open(cell) else cell for cell in cells]
        return build_result(
            sweep_id=self._stored.id,
            created=self._stored.created,
            status=status,
            spec=self._spec,
            schedule=cells,
            state=self._state,
            calibration=self._calibration,
            failures=self._failures,
            elapsed_s=self._spent_before + self._budget.elapsed(),
            trouble=trouble,
        )

    def _save(self, status: str, trouble: Sequence[str] = ()) -> SweepResult:
        result = self._result(status, trouble)
        write_json(self._folder / SWEEP_FILE, result.model_dump(mode="json"))
        return result


class _BaselineFailedError(Exception):
    """The baseline has never given a result, so there is nothing to compare with."""
