"""Sweeps in a run store: folders with a ``sweep.json``, read as data from strangers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from experiments.models import SWEEP_SCHEMA_VERSION, SweepResult
from reports.config_diff import Difference, by_level
from reports.documents import read_document
from reports.pairing import level_key
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest
from workbench.runstore import RunStore

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepInfo:
    """One line of a list of sweeps. ``error`` tells why a folder can't be read."""

    id: str
    path: Path
    result: SweepResult | None
    error: str | None = None


def load_sweep(folder: Path) -> SweepResult:
    """Read ``sweep.json``.

    Raises:
        RunCorruptError: it is missing, cut short, of another schema, or no sweep at all.
    """
    return read_document(folder / SWEEP_FILE, SweepResult, SWEEP_SCHEMA_VERSION)


def list_sweeps(root: Path) -> list[SweepInfo]:
    """Every sweep under ``root``, newest first; unreadable ones carry their error."""
    if not root.is_dir():
        return []
    found = []
    for folder in root.iterdir():
        if folder.name.startswith(".") or not (folder / SWEEP_FILE).is_file():
            continue
        try:
            found.append(SweepInfo(folder.name, folder, load_sweep(folder)))
        except RunCorruptError as error:
            found.append(SweepInfo(folder.name, folder, None, str(error)))
    return sorted(found, key=lambda info: info.result.created if info.result else "", reverse=True)


def find_sweep(root: Path, name: str) -> Path | None:
    """Folder of the sweep called ``name`` directly under ``root``, or of the path ``name``; None when it is
    no sweep.
    """
    beside = root / name
    if "/" not in name and (beside / SWEEP_FILE).is_file():
        return beside
    given = Path(name)
    return given if (given / SWEEP_FILE).is_file() else None


def manifests(folder: Path, sweep: SweepResult) -> dict[str, Manifest]:
    """Manifests of the sweep's runs that can be read, by run id."""
    store = RunStore(folder.parent)
    found = {}
    for run_id in sweep.runs:
        if "/" in run_id or run_id.startswith("."):
            continue
        try:
            found[run_id] = store.open(run_id).manifest
        except (RunCorruptError, InvalidInputError):
            continue
    return found


@dataclass(frozen=True)
class FactorProof:
    """What the engines themselves said about their settings, level by level."""

    compared: int
    """Runs whose echo was read."""
    missing: int
    """Runs without a readable echo."""
    differences: list[Difference]
    field: str

    @property
    def others(self) -> list[Difference]:
        """Settings other than the factor's that differ although they should not."""
        return [d for d in self.differences if not d.per_run and not self._is_factor(d)]

    @property
    def shown(self) -> list[Difference]:
        """What a reader needs: the factor, and anything that differs beside it."""
        return [d for d in self.differences if not d.per_run]

    @property
    def proven(self) -> bool:
        """The factor's field differs, and nothing else does."""
        return bool(self.compared) and not self.others and any(map(self._is_factor, self.differences))

    def _is_factor(self, difference: Difference) -> bool:
        return difference.key == self.field or difference.key.endswith(f".{self.field}")


def prove_factor(sweep: SweepResult, found: Mapping[str, Manifest]) -> FactorProof:
    """Compare the echoes of all runs, level against level."""
    echoes: dict[str, list[Mapping[str, Any] | None]] = {}
    compared = 0
    for level in sweep.levels:
        known = [found[run].target.echo for run in level.runs if run in found and found[run].target.echo]
        compared += len(known)
        if known:
            echoes[level_key(level.value)] = list(known)
    return FactorProof(
        compared, sum(len(v.runs) for v in sweep.levels) - compared, by_level(echoes), sweep.field
    )
