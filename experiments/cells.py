"""The seam between the design and the thing measured: one cell in, one outcome out.

The sweeper knows nothing of servers. It is given a ``RunCell``: the real one runs ``workbench.bench``
(``bench_cell.py``), tests give a noise model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from experiments.models import Cell
from experiments.spec import Load


@dataclass(frozen=True)
class CellOutcome:
    """What one run gave.

    Attributes:
        state: DONE (counts), VOID (ran, but breaks a validity rule: kept, not counted), FAILED (no numbers).
        metrics: flat metrics of the run (:func:`workbench.metrics.flat`) and the counts behind its goodput.
        outputs: request index (as text) to a hash of its output tokens.
        retryable: False where a repeat can't help: the target refuses the level, or clamps it.
        flagged: tail metrics with too few samples.
        context: ``target`` (configuration in force) and ``machine``, for the sweep's header.
    """

    state: Literal["DONE", "VOID", "FAILED"]
    run: str | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    retryable: bool = True
    flagged: Sequence[str] = ()
    context: Mapping[str, Any] = field(default_factory=dict)


class RunCell(Protocol):
    """Run one cell in a fresh target process and wait for it.

    May raise: every exception makes the cell FAILED with its text as the reason; ``KeyboardInterrupt`` ends
    the sweep.
    """

    def __call__(self, cell: Cell, load: Load) -> CellOutcome: ...


class SweepProgress(Protocol):
    """Who watches a sweep. Called between runs only, never while one is measured."""

    def planned(self, folder: Path, cells: Sequence[Cell]) -> None: ...
    def note(self, text: str) -> None: ...
    def cell_started(self, cell: Cell, remaining_s: float | None) -> None: ...
    def cell_finished(self, cell: Cell) -> None: ...


class NoProgress:
    """Watches in silence."""

    def planned(self, folder: Path, cells: Sequence[Cell]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def cell_started(self, cell: Cell, remaining_s: float | None) -> None:
        pass

    def cell_finished(self, cell: Cell) -> None:
        pass


def outputs_digest(outputs: Mapping[str, str]) -> str | None:
    """One hash over all requests of a run, in order; None when there is nothing to compare."""
    if not outputs:
        return None
    text = "\n".join(f"{index} {digest}" for index, digest in sorted(outputs.items()))
    return hashlib.sha256(text.encode()).hexdigest()
