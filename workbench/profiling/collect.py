"""Brings a profiled window from the engine's folder into the run: ``kernels.parquet``, ``profile.json``, and
the Kineto traces themselves.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from engine.executor.profiled import PROFILE_FOLDER
from workbench.atomic import write_json
from workbench.errors import RunCorruptError
from workbench.profiling.gpu import Coverage, analyse_gpu, measure_coverage
from workbench.profiling.kineto import (
    KERNELS_SCHEMA_VERSION,
    STEP_NAME,
    KinetoTrace,
    kernels_table,
    read_trace,
)
from workbench.runstore import Run, RunWriter

PROFILE = "profile.json"
LOW_COVERAGE = 0.95


def collect_profile(trace_folder: Path, writer: RunWriter) -> list[str]:
    """Reduce every window that the engine left under ``trace_folder``.

    Returns:
        What a reader should know: coverage, distortion, what was lost.
    """
    folder = trace_folder / PROFILE_FOLDER
    metas = sorted(folder.glob("window-*.meta.json"))
    if not metas:
        return ["profile: the engine left no trace"] if "profiled" in writer.manifest.tags else []
    notes: list[str] = []
    tables: list[pa.Table] = []
    reports: list[dict[str, Any]] = []
    steps = Run(writer.path, writer.manifest).arrow("steps")
    for path in metas:
        try:
            table, report, words = _window(path, writer.path, steps)
        except (RunCorruptError, ValueError, KeyError) as error:
            notes.append(f"profile: {path.name}: {error}")
            continue
        tables.append(table)
        reports.append(report)
        notes += words
        path.unlink()
    if tables:
        writer.write_table("kernels", pa.concat_tables(tables), KERNELS_SCHEMA_VERSION)
    write_json(writer.path / PROFILE, {"schema_version": 1, "windows": reports})
    with contextlib.suppress(OSError):
        folder.rmdir()  # stays when something unexpected lies in it
        trace_folder.rmdir()
    return notes


def _window(
    meta_path: Path, run_folder: Path, steps: pa.Table | None
) -> tuple[pa.Table, dict[str, Any], list[str]]:
    meta = json.loads(meta_path.read_bytes())
    raw = meta_path.with_name(meta_path.name.replace(".meta.json", ".json"))
    name = raw.stem
    if not meta["kept"] or not raw.is_file():
        megabytes = meta["bytes"] / 1e6
        note = (
            f"profile: {name}: the trace ({megabytes:.0f} MB) was over the size limit and dropped: "
            "profile fewer steps"
        )
        return kernels_table([]), {"name": name, "meta": meta, "report": None}, [note]
    trace = read_trace(raw, shift_ns=meta["monotonic_ns"] - meta["wall_ns"])
    distortion = measure_distortion(steps, meta["step_ids"])
    coverage = measure_coverage(trace, len(meta["step_ids"]), distortion)
    with (
        gzip.open(run_folder / f"kineto-{name}.json.gz", "wb", compresslevel=3) as packed,
        raw.open("rb") as file,
    ):
        shutil.copyfileobj(file, packed, 1 << 20)
    raw.unlink()
    notes = [
        f"profile: {name}: {len(meta['step_ids'])} steps, coverage {coverage.share:.0%}"
        + _distorted(distortion)
    ]
    if coverage.share < LOW_COVERAGE:
        notes.append(f"profile: {name}: {1 - coverage.share:.0%} of what was expected is not in the trace")
    return kernels_table(trace.rows), {"meta": meta, **summarise(name, trace, coverage)}, notes


def summarise(name: str, trace: KinetoTrace, coverage: Coverage | None = None) -> dict[str, Any]:
    """One window as ``profile.json`` and ``workbench profile`` have it."""
    report = analyse_gpu(trace, coverage)
    steps_ns = sum(r.dur_ns for r in trace.rows if r.cls == "annotation" and STEP_NAME.search(r.name))
    return {
        "name": name,
        "steps_ns": steps_ns,
        "operators": _operators(trace),
        "report": report.as_json(),
    }


def measure_distortion(steps: pa.Table | None, profiled: Sequence[int]) -> float | None:
    """Profiled steps that only decode over others of the same batch size, median of the ratios; None where
    nothing can be compared.
    """
    if steps is None:
        return None
    names = ("step_id", "t_start", "t_end", "num_prefill_reqs", "num_decode_reqs")
    inside, mine, usual = set(profiled), [], defaultdict(list)
    for step_id, start, end, prefills, decodes in zip(*(steps[n].to_pylist() for n in names), strict=True):
        if prefills == 0 and step_id in inside:
            mine.append((decodes, end - start))
        elif prefills == 0:
            usual[decodes].append(end - start)
    ratios = [ns / median(usual[decodes]) for decodes, ns in mine if len(usual[decodes]) >= 3]
    return median(ratios) if len(ratios) >= 3 else None


def _distorted(distortion: float | None) -> str:
    return "" if distortion is None else f", decode steps took {distortion:.2f} times as long as without it"


def _operators(trace: KinetoTrace, count: int = 15) -> list[dict[str, Any]]:
    """CPU operators by time of their own (children taken off), as far as rows of one thread nest."""
    spent: dict[str, int] = {}
    calls: dict[str, int] = {}
    open_rows: dict[str, list[tuple[int, str]]] = {}
    for row in trace.rows:
        if row.on_gpu or row.cls == "annotation":
            continue
        stack = open_rows.setdefault(row.track, [])
        while stack and stack[-1][0] <= row.ts_ns:
            stack.pop()
        if stack and row.end_ns <= stack[-1][0]:
            spent[stack[-1][1]] -= row.dur_ns
        spent[row.name] = spent.get(row.name, 0) + row.dur_ns
        calls[row.name] = calls.get(row.name, 0) + 1
        stack.append((row.end_ns, row.name))
    ranked = sorted(spent.items(), key=lambda item: -item[1])[:count]
    return [{"name": name, "calls": calls[name], "self_ns": ns} for name, ns in ranked]
