"""What the dashboard reads, cached by file and modification time. Only folders under the run store are
opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.errors import InvalidInputError
from experiments.capacity.models import CapacityResult
from experiments.diagnosis.models import Diagnosis
from experiments.gate.models import GateResult
from experiments.gate.selftest import SelfTest
from experiments.ledger import LEDGER
from experiments.models import SweepResult
from reports import studies
from reports.findings import load_findings
from reports.run_data import RunData
from reports.run_view import Tables, bucket
from reports.sweeps import FactorProof, SweepInfo, list_sweeps, load_sweep, manifests, prove_factor
from reports.time_split import time_split
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest
from workbench.runstore import Run, RunInfo, RunStore

Signature = tuple[tuple[str, int, int], ...]
_WATCHED = ("manifest.json", "metrics.json", "sweep.json", "capacity.json", "gate.json", "aa.json")


def root() -> Path:
    """The run store that ``workbench dashboard`` was started on."""
    return RunStore().root


def signature(folder: Path) -> Signature:
    """Name, modification time (ns) and size of every file in ``folder``: changes when its contents do."""
    try:
        with os.scandir(folder) as entries:
            found = [(e.name, e.stat()) for e in entries if e.is_file()]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))


def _folder_signatures(folder: Path) -> dict[str, str]:
    """Name of every folder of the store to a text that changes when one of its watched files is written."""
    found: dict[str, str] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return found
    for name in names:
        try:
            with os.scandir(folder / name) as entries:
                stats = sorted((e.name, e.stat()) for e in entries if e.name in _WATCHED)
        except OSError:
            continue
        found[name] = " ".join(f"{file} {stat.st_mtime_ns} {stat.st_size}" for file, stat in stats)
    return found


def _as_text(signatures: Mapping[str, str]) -> str:
    """A text as key of a cache: to hash thousands of tuples takes Streamlit longer than reading the store."""
    return "\n".join(f"{name}/{text}" for name, text in signatures.items() if text)


def _store_signature(folder: Path) -> str:
    """Changes when a folder of the store comes, goes, or has one of its watched files written."""
    return _as_text(_folder_signatures(folder))


@st.cache_resource(show_spinner=False, max_entries=2)
def _read_before(path: str) -> dict[str, tuple[str, RunInfo]]:
    """Per folder of the store, what was read when it had which signature; kept by :func:`_runs`."""
    return {}


@st.cache_resource(show_spinner=False, max_entries=2)
def _runs(path: str, signature: str, _signatures: Mapping[str, str]) -> list[RunInfo]:
    """Reads the folders that are new or changed; of the others it knows.

    Args:
        _signatures: per folder, what ``signature`` is made of.
    """
    base, folder, known = Path(path).resolve(), RunStore(path), _read_before(path)
    found: dict[str, tuple[str, RunInfo]] = {}
    for name in folder.folders():
        stamp = _signatures.get(name, "")
        kept = known.get(name)
        if kept is not None and stamp and kept[0] == stamp and kept[1].status != "running":
            found[name] = kept
        elif (info := folder.info(name)) is not None:
            found[name] = (stamp, _checked(info, base))
    known.clear()
    known.update(found)
    return [info for _, info in reversed(found.values())]


def _checked(info: RunInfo, base: Path) -> RunInfo:
    """A folder that leads out of the store is listed, but nothing of it is shown."""
    if not info.path.is_symlink() or info.path.resolve().parent == base:
        return info
    return RunInfo(id=info.id, path=info.path, error="it links to a folder outside this run store")


def runs() -> list[RunInfo]:
    """Every run of the store, newest first; unreadable ones carry an error."""
    folder = root()
    found = _folder_signatures(folder)
    return _runs(str(folder), _as_text(found), found)


def readable_runs() -> list[RunInfo]:
    """Runs whose manifest can be read."""
    return [info for info in runs() if info.created]


def labels(known: Mapping[str, RunInfo]) -> dict[str, str]:
    """How runs are called in a list to choose from."""
    return {i: f"{info.name or info.workload} — {i}".removeprefix(" — ") for i, info in known.items()}


@st.cache_data(show_spinner=False, max_entries=2)
def _sweeps(path: str, signature: str) -> list[SweepInfo]:
    return list_sweeps(Path(path))


def sweeps() -> list[SweepInfo]:
    """Every sweep of the store, newest first; unreadable ones carry an error."""
    folder = root()
    return _sweeps(str(folder), _store_signature(folder))


def overview() -> tuple[list[SweepInfo], list[RunInfo]]:
    """``sweeps()`` and ``runs()`` from one look at the folders, which is most of their cost when cached."""
    folder = root()
    found = _folder_signatures(folder)
    text = _as_text(found)
    return _sweeps(str(folder), text), _runs(str(folder), text, found)


def open_run(run_id: str) -> Run:
    """Open a run of this store.

    Raises:
        RunCorruptError: it is no run of this store, leads out of it, or can't be read.
    """
    return RunStore(root()).open(folder_of(run_id))


def folder_of(name: str) -> Path:
    """The folder ``name`` directly under the store, none of whose files leads out of it.

    Raises:
        RunCorruptError: there is no such folder, or it or a file in it is a link to elsewhere.
    """
    folder = _inside(name)
    if folder is None:
        raise RunCorruptError(f"{name}: no folder of this run store")
    home = folder.resolve()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(home):
                raise RunCorruptError(f"{name}: {entry.name} links to a file outside the run's folder")
    return folder


def remove_run(run_id: str) -> None:
    """Delete a run for good.

    Raises:
        RunCorruptError: it is no run of this store, leads out of it, or is being written.
    """
    folder = _inside(run_id)
    info = RunStore(root()).info(run_id) if folder is not None else None
    if folder is None or info is None:
        raise RunCorruptError(f"{run_id}: no run of this run store")
    if info.status == "running":
        raise RunCorruptError(f"{run_id}: it is being written; end it first")
    try:
        RunStore(root()).remove(run_id)
    except (InvalidInputError, OSError) as error:
        raise RunCorruptError(f"{run_id}: {error}") from None


def _inside(name: str) -> Path | None:
    """Folder ``name`` directly under the store; None for anything that would lead elsewhere."""
    base = root()
    if not name or name in (".", "..") or Path(name).name != name:
        return None
    folder = base / name
    if not folder.is_dir() or folder.resolve().parent != base.resolve():
        return None
    return folder


@dataclass(frozen=True)
class RunPage:
    """A run as its pages need it."""

    id: str
    path: Path
    manifest: Manifest
    metrics: dict[str, Any] | None
    tables: Tables
    tokens: pd.DataFrame | None
    bucket_s: float


@st.cache_resource(show_spinner="Reading the run …", max_entries=6)
def _run_page(path: str, signature: Signature) -> RunPage:
    run = open_run(Path(path).name)
    data = RunData.of(run.path, run.manifest)
    tables = Tables.read(data)
    try:
        metrics = run.metrics()
    except RunCorruptError as error:
        metrics = None
        tables.problems.append(str(error))
    width = bucket(tables.duration_s())
    try:
        tokens = data.tokens_over_time(width)
    except RunCorruptError as error:
        tokens = None
        if str(error) not in tables.problems:
            tables.problems.append(str(error))
    return RunPage(run.path.name, run.path, run.manifest, metrics, tables, tokens, width)


@st.cache_data(show_spinner="Splitting the requests' time …", max_entries=6)
def _time_split(path: str, signature: Signature) -> pd.DataFrame | None:
    return time_split(open_run(Path(path).name))


def split_of(run_id: str) -> pd.DataFrame | None:
    """Where each request's time went, see ``reports.time_split``.

    Raises:
        RunCorruptError: a table can't be read.
    """
    folder = folder_of(run_id)
    return _time_split(str(folder), signature(folder))


def run_page(run_id: str) -> RunPage:
    """Everything about a run, from the cache while its files do not change.

    Raises:
        RunCorruptError: it is no run of this store or can't be read.
    """
    folder = folder_of(run_id)
    return _run_page(str(folder), signature(folder))


@dataclass(frozen=True)
class SweepPage:
    """A sweep as its page needs it."""

    path: Path
    result: SweepResult
    proof: FactorProof


@st.cache_data(show_spinner="Reading the sweep …", max_entries=6)
def _sweep_page(path: str, signature: Signature) -> SweepPage:
    folder = Path(path)
    result = load_sweep(folder)
    return SweepPage(folder, result, prove_factor(result, manifests(folder, result)))


def sweep_page(sweep_id: str) -> SweepPage:
    """Everything about a sweep.

    Raises:
        RunCorruptError: it is no sweep of this store or can't be read.
    """
    folder = folder_of(sweep_id)
    return _sweep_page(str(folder), signature(folder))


def findings(run_id: str) -> Diagnosis | None:
    """What ``workbench diagnose`` left in the run's folder; None: nothing.

    Raises:
        RunCorruptError: it can't be read.
    """
    return load_findings(open_run(run_id))


@st.cache_data(show_spinner=False, max_entries=2)
def _studies(
    path: str, signature: str
) -> tuple[
    list[studies.Study[CapacityResult]], list[studies.Study[GateResult]], list[studies.Study[SelfTest]]
]:
    base = Path(path)
    return studies.list_capacities(base), studies.list_gates(base), studies.list_self_tests(base)


def capacities() -> list[studies.Study[CapacityResult]]:
    """Every capacity search of the store, newest first; unreadable ones carry an error."""
    return _studies(str(root()), _store_signature(root()))[0]


def gates() -> list[studies.Study[GateResult]]:
    """Every gate of the store, newest first; unreadable ones carry an error."""
    return _studies(str(root()), _store_signature(root()))[1]


def self_tests() -> list[studies.Study[SelfTest]]:
    """Every A/A record of the store, newest first; unreadable ones carry an error."""
    return _studies(str(root()), _store_signature(root()))[2]


def capacity(capacity_id: str) -> CapacityResult:
    """Raises:
    RunCorruptError: it is no search of this store or can't be read.
    """
    return studies.load_capacity(folder_of(capacity_id))


def gate(gate_id: str) -> GateResult:
    """Raises:
    RunCorruptError: it is no gate of this store or can't be read.
    """
    return studies.load_gate(folder_of(gate_id))


def still_running(info: RunInfo) -> bool:
    """Is the process that writes this run alive? Looked up now, not from the cache."""
    fresh = RunStore(root()).info(info.id)
    return fresh is not None and fresh.status == "running"


def open_sweeps() -> list[Path]:
    """Folders of sweeps that have a ledger and no final ``sweep.json``, the newest first."""
    finished = {s.id for s in sweeps() if s.result is not None and s.result.status != "running"}
    base = root()
    try:
        names = sorted(os.listdir(base), reverse=True)
    except OSError:
        return []
    return [
        base / name
        for name in names
        if name not in finished and (base / name / LEDGER).is_file() and _inside(name) is not None
    ]
