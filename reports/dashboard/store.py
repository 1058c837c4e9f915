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

from experiments.models import SweepResult
from reports.lifecycle import Span
from reports.run_data import RunData
from reports.run_view import Tables, bucket
from reports.sweeps import FactorProof, SweepInfo, list_sweeps, load_sweep, manifests, prove_factor
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest
from workbench.runstore import Run, RunInfo, RunStore

Signature = tuple[tuple[str, int, int], ...]
_WATCHED = ("manifest.json", "metrics.json", "sweep.json")


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


def _store_signature(folder: Path) -> Signature:
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    for name in names:
        for file in _WATCHED:
            try:
                stat = os.stat(folder / name / file)
            except OSError:
                continue
            found.append((f"{name}/{file}", stat.st_mtime_ns, stat.st_size))
    return tuple(found)


@st.cache_data(show_spinner=False, max_entries=2)
def _runs(path: str, signature: Signature) -> list[RunInfo]:
    return RunStore(path).list()[::-1]


def runs() -> list[RunInfo]:
    """Every run of the store, newest first; unreadable ones carry an error."""
    folder = root()
    return _runs(str(folder), _store_signature(folder))


def readable_runs() -> list[RunInfo]:
    """Runs whose manifest can be read."""
    return [info for info in runs() if info.created]


def labels(known: Mapping[str, RunInfo]) -> dict[str, str]:
    """How runs are called in a list to choose from."""
    return {i: f"{info.name or info.workload} — {i}".removeprefix(" — ") for i, info in known.items()}


@st.cache_data(show_spinner=False, max_entries=2)
def _sweeps(path: str, signature: Signature) -> list[SweepInfo]:
    return list_sweeps(Path(path))


def sweeps() -> list[SweepInfo]:
    """Every sweep of the store, newest first; unreadable ones carry an error."""
    folder = root()
    return _sweeps(str(folder), _store_signature(folder))


def open_run(run_id: str) -> Run:
    """Open a run of this store.

    Raises:
        RunCorruptError: it is no run of this store, leads out of it, or can't be read.
    """
    folder = _inside(run_id)
    if folder is None:
        raise RunCorruptError(f"{run_id}: no folder of this run store")
    return RunStore(root()).open(folder)


def _inside(name: str) -> Path | None:
    """Folder ``name`` directly under the store; None for anything that would lead elsewhere."""
    base = root()
    if not name or name in (".", "..") or Path(name).name != name:
        return None
    folder = base / name
    return folder if folder.is_dir() and folder.resolve().parent == base.resolve() else None


@dataclass(frozen=True)
class RunPage:
    """A run as its pages need it."""

    id: str
    path: Path
    manifest: Manifest
    metrics: dict[str, Any] | None
    tables: Tables
    spans: list[Span]
    span_source: str
    tokens: pd.DataFrame | None
    bucket_s: float


@st.cache_data(show_spinner="Reading the run …", max_entries=6)
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
    spans, source = tables.spans()
    return RunPage(run.path.name, run.path, run.manifest, metrics, tables, spans, source, tokens, width)


def run_page(run_id: str) -> RunPage:
    """Everything about a run, from the cache while its files do not change.

    Raises:
        RunCorruptError: it is no run of this store or can't be read.
    """
    folder = _inside(run_id)
    if folder is None:
        raise RunCorruptError(f"{run_id}: no folder of this run store")
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
    folder = _inside(sweep_id)
    if folder is None:
        raise RunCorruptError(f"{sweep_id}: no folder of this run store")
    return _sweep_page(str(folder), signature(folder))
