"""Capacity searches, gates and A/A records in a run store: folders read as data from strangers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from experiments.capacity.models import CAPACITY_SCHEMA_VERSION, CapacityResult
from experiments.capacity.run import CAPACITY_FILE
from experiments.gate.models import GATE_SCHEMA_VERSION, GateResult
from experiments.gate.selftest import SelfTest
from reports.documents import read_document
from workbench.errors import RunCorruptError

GATE_FILE, AA_FILE = "gate.json", "aa.json"
MOST_BYTES = 64 * 2**20
"""A larger file is none that the workbench wrote."""
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class Study(Generic[T]):
    """One folder of a list. ``error`` tells why it can't be read."""

    id: str
    path: Path
    result: T | None
    error: str | None = None


def load_capacity(folder: Path) -> CapacityResult:
    """Read ``capacity.json``.

    Raises:
        RunCorruptError: it is missing, cut short, of another schema, or leads out of the folder.
    """
    return _load(folder, CAPACITY_FILE, CapacityResult, CAPACITY_SCHEMA_VERSION)


def load_gate(folder: Path) -> GateResult:
    """As :func:`load_capacity`, of ``gate.json``."""
    return _load(folder, GATE_FILE, GateResult, GATE_SCHEMA_VERSION)


def load_self_test(folder: Path) -> SelfTest:
    """As :func:`load_capacity`, of ``aa.json``."""
    return _load(folder, AA_FILE, SelfTest, 1)


def list_capacities(root: Path) -> list[Study[CapacityResult]]:
    """Every capacity search directly under ``root``, newest first."""
    found = _list(root, CAPACITY_FILE, CapacityResult, CAPACITY_SCHEMA_VERSION)
    return sorted(found, key=lambda s: s.result.created if s.result else "", reverse=True)


def list_gates(root: Path) -> list[Study[GateResult]]:
    """Every gate directly under ``root``, newest first."""
    found = _list(root, GATE_FILE, GateResult, GATE_SCHEMA_VERSION)
    return sorted(found, key=lambda s: s.result.created if s.result else "", reverse=True)


def list_self_tests(root: Path) -> list[Study[SelfTest]]:
    """Every A/A record directly under ``root``, newest first."""
    found = _list(root, AA_FILE, SelfTest, 1)
    return sorted(found, key=lambda s: s.result.created if s.result else "", reverse=True)


def _list(root: Path, name: str, kind: type[T], version: int) -> list[Study[T]]:
    found: list[Study[T]] = []
    try:
        entries = sorted(os.listdir(root))
    except OSError:
        return []
    for entry in entries:
        folder = root / entry
        if entry.startswith(".") or not (folder / name).is_file():
            continue
        if folder.resolve().parent != root.resolve():
            found.append(Study(entry, folder, None, f"{entry}: links to a folder outside the run store"))
            continue
        try:
            found.append(Study(entry, folder, _load(folder, name, kind, version)))
        except RunCorruptError as error:
            found.append(Study(entry, folder, None, str(error)))
    return found


def _load(folder: Path, name: str, kind: type[T], version: int) -> T:
    path = folder / name
    try:
        if path.resolve().parent != folder.resolve():
            raise RunCorruptError(f"{folder.name}: {name} links to a file outside its folder")
        if path.stat().st_size > MOST_BYTES:
            raise RunCorruptError(f"{folder.name}: {name} is larger than {MOST_BYTES >> 20} MiB")
    except OSError as error:
        raise RunCorruptError(f"{folder.name}: {name}: {error.strerror or error}") from None
    return read_document(path, kind, version)
