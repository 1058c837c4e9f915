"""The ledger of a sweep: ``ledger.jsonl``, append-only, one line an event, on the disk before the next run
starts.

It is the truth about what has run: ``sweep.json`` is made from it and a resumed sweep continues from it. A
line cut by a crash is the last one and is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from experiments.cells import CellOutcome
from experiments.models import Cell

LEDGER = "ledger.jsonl"
CellKey = tuple[str, int, int]
"""(phase, block, position)"""


def cell_key(cell: Cell) -> CellKey:
    return (cell.phase, cell.block, cell.position)


@dataclass
class LedgerState:
    """What the ledger says so far."""

    cells: dict[CellKey, Cell] = field(default_factory=dict)
    """Cells that came to an end, in the order in which they ran."""
    outputs: dict[CellKey, dict[str, str]] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    """``target`` and ``machine`` of the first run that told them."""
    calibration: dict[str, Any] | None = None
    planned: list[Cell] = field(default_factory=list)
    """Cells planned on the way: the next block of a search, the winner again, the winner along an axis."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Attempts that were repeated, with their reasons."""


class Ledger:
    """Append-only. Every append is flushed to the disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEDGER
        self._mend()

    def _mend(self) -> None:
        """Cut off the half line of a crash, so that the next append starts on a line of its own."""
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))

    def append(self, event: str, **fields: Any) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"t": stamp, "event": event, **fields}, allow_nan=False, separators=(",", ":"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def calibrated(self, calibration: Mapping[str, Any]) -> None:
        self.append("calibrated", calibration=dict(calibration))

    def planned(self, cells: Sequence[Cell]) -> None:
        """Cells that the schedule could not know; on the disk before the first of them runs."""
        self.append("planned", cells=[cell.model_dump(mode="json") for cell in cells])

    def started(self, cell: Cell, attempt: int) -> None:
        self.append("started", cell=list(cell_key(cell)), level=cell.level, attempt=attempt)

    def repeated(self, cell: Cell, attempt: int, outcome: CellOutcome) -> None:
        """An attempt that does not count and is tried again; its reason is kept."""
        self.append(
            "repeated", cell=list(cell_key(cell)), level=cell.level, attempt=attempt, state=outcome.state,
            run=outcome.run, reason=outcome.reason,
        )  # fmt: skip

    def finished(self, cell: Cell, outcome: CellOutcome | None) -> None:
        self.append(
            "finished",
            cell=cell.model_dump(mode="json"),
            outputs=dict(outcome.outputs) if outcome else {},
            context=dict(outcome.context) if outcome else {},
        )

    def read(self) -> LedgerState:
        """Replay all events.

        Raises:
            InvalidInputError: a line in the middle can't be read: the ledger was edited or damaged.
        """
        state = LedgerState()
        if not self._path.exists():
            return state
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                entry = json.loads(line)
                event = entry["event"]
                if event == "calibrated":
                    state.calibration = entry["calibration"]
                elif event == "planned":
                    state.planned += [Cell.model_validate(cell) for cell in entry["cells"]]
                elif event == "repeated":
                    state.attempts.append(entry)
                elif event == "finished":
                    cell = Cell.model_validate(entry["cell"])
                    state.cells[cell_key(cell)] = cell
                    state.outputs[cell_key(cell)] = entry["outputs"]
                    state.context = state.context or entry["context"]
            except (ValueError, KeyError, TypeError):
                raise InvalidInputError(
                    "ledger", f"{self._path.name} line {number}", "a line of this sweep"
                ) from None
        return state
