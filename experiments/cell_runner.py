"""Runs one cell after the other, each written to the ledger and to Optuna's study before the next starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from engine.errors import InvalidInputError
from experiments.cells import CellOutcome, RunCell, SweepProgress, outputs_digest
from experiments.design import level_text, same_level
from experiments.ledger import Ledger, LedgerState, cell_key
from experiments.models import Cell
from experiments.spec import Load, SweepSpec
from experiments.trials import Trials


class BaselineFailedError(Exception):
    """The baseline has never given a result, so there is nothing to compare with."""


class CellRunner:
    """Retries, reasons, levels that never run; ``saved`` is called after every cell."""

    def __init__(
        self,
        spec: SweepSpec,
        ledger: Ledger,
        state: LedgerState,
        trials: Trials,
        run_cell: RunCell,
        progress: SweepProgress,
        control: Callable[[], float],
        clock: Callable[[], float],
        saved: Callable[[], object],
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._state = state
        self._trials = trials
        self._run_cell = run_cell
        self._progress = progress
        self._control = control
        self._clock = clock
        self._saved = saved
        self.load: Load | None = None
        """Of every run; set once it is known."""
        self.failures = self._known_failures()
        """Level (as text) to the reason why it is given up."""

    def is_open(self, cell: Cell) -> bool:
        return cell_key(cell) not in self._state.cells

    def seconds(self, guess: float) -> float:
        """Wall time of a run: as observed, ``guess`` before the first."""
        seen = [c.seconds for c in self._state.cells.values() if c.seconds is not None]
        return fmean(seen) if seen else guess

    def run(self, cell: Cell, remaining_s: float | None) -> None:
        """Run a cell, again after a failure; write its end to the ledger.

        Raises:
            BaselineFailedError: there is nothing to compare with.
        """
        name = level_text(cell.level)
        if name in self.failures:
            self._finish(cell.model_copy(update={"state": "SKIPPED", "reason": self.failures[name]}), None)
            return
        self._progress.cell_started(cell, remaining_s)
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

    def run_open(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            if self.is_open(cell):
                self.run(cell, None)

    def _attempt(self, cell: Cell) -> CellOutcome:
        if self.load is None:
            raise RuntimeError("a cell was run before the load was set")
        try:
            return self._run_cell(cell, self.load)
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
        self._saved()
        self._progress.cell_finished(cell)

    def _give_up_if_it_never_runs(self, cell: Cell, outcome: CellOutcome) -> None:
        """A level that has never given a result is not tried in later blocks; the baseline ends the sweep."""
        if outcome.state == "DONE" or (outcome.state == "VOID" and outcome.retryable):
            return
        if any(c.state == "DONE" and same_level(c.level, cell.level) for c in self._state.cells.values()):
            return
        if same_level(cell.level, self._spec.baseline):
            raise BaselineFailedError(outcome.reason)
        self.failures[level_text(cell.level)] = outcome.reason

    def _known_failures(self) -> dict[str, Any]:
        """Levels that a ledger read back shows as given up: failed, and never with a result."""
        cells = self._state.cells.values()
        ran = {level_text(cell.level) for cell in cells if cell.state == "DONE"}
        bad = ("FAILED", "SKIPPED")
        failed = {level_text(cell.level): cell.reason for cell in cells if cell.state in bad}
        return {name: reason for name, reason in failed.items() if name not in ran}
