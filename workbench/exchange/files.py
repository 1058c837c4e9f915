"""Runs to files and files to runs: which format a file is of, and one clear line when it is of none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidInputError
from workbench.atomic import beside, write_json
from workbench.exchange import incoming as incoming_module
from workbench.exchange.aiperf import RECORDS, SUMMARY, aiperf_records, aiperf_summary
from workbench.exchange.bundle import read_bundle, write_bundle
from workbench.exchange.csvfile import requests_csv
from workbench.exchange.guidellm import guidellm_report
from workbench.exchange.importers import from_aiperf, from_csv, from_guidellm, from_vllm
from workbench.exchange.incoming import Incoming
from workbench.exchange.vllm import vllm_result
from workbench.runstore import Run, RunStore

_NAMES = {
    "bundle": "{id}.tar.gz",
    "vllm": "{id}-vllm.json",
    "guidellm": "{id}-guidellm.json",
    "aiperf": "{id}-aiperf",
    "csv": "{id}.csv",
    "perfetto": "{id}-trace.json.gz",
}
FORMATS = tuple(_NAMES)


def export_run(run: Run, format: str, out: Path | None) -> Path:
    """Write ``run`` in ``format`` to ``out`` (default: a name of its own in the current folder; aiperf's
    is a folder).

    Raises:
        InvalidInputError: the run has no metrics, or the place can't be written.
    """
    path = out if out is not None else Path(_NAMES[format].format(id=run.id))
    if format == "bundle":
        write_bundle(run, path)
        return path
    if format == "perfetto":
        from workbench.timeline.perfetto import export

        export(run, path)
        return path
    try:
        if format == "aiperf":
            path.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(record) + "\n" for record in aiperf_records(run))
            write_json(path / SUMMARY, aiperf_summary(run))
            _write(path / RECORDS, lines)
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        if format == "csv":
            _write(path, requests_csv(run))
        else:
            write_json(path, vllm_result(run, detailed=True) if format == "vllm" else guidellm_report(run))
    except OSError as error:
        raise InvalidInputError("out", str(path), f"a place that can be written ({error.strerror})") from None
    return path


def import_file(path: Path, store: RunStore, benchmark: int = 0) -> Run:
    """Store the run that a file (or AIPerf's folder) of any of the formats holds.

    Args:
        benchmark: which of the benchmarks in a GuideLLM report.

    Raises:
        InvalidInputError: the file can't be read, or is of no known format.
    """
    if path.is_dir():
        path = path / RECORDS
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return read_bundle(path, store)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInputError("file", str(path), f"a file that can be read ({error.strerror})") from None
    try:
        found = _parse(data, path, benchmark)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
        raise InvalidInputError(
            "file", str(path), f"a result of vllm, guidellm, aiperf or csv ({what})"
        ) from None
    return incoming_module.store(found, store)


def _parse(data: bytes, path: Path, benchmark: int) -> Incoming:
    if path.suffix == ".csv":
        return from_csv(data.decode("utf-8"))
    if path.suffix == ".jsonl":
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        lines = [decode(line) for line in data.splitlines() if line.strip()]
        if lines and "metadata" in lines[0]:
            return from_aiperf(list(lines))
        # --append-result: one result a line; the last is the newest.
        return from_vllm(lines[-1])
    value = msgspec.json.decode(data, type=dict[str, Any])
    if "benchmarks" in value:
        return from_guidellm(value, benchmark)
    if "duration" in value and ("completed" in value or "ttfts" in value):
        return from_vllm(value)
    raise ValueError(f"keys {sorted(value)[:6]}")


def _write(path: Path, text: str) -> None:
    with beside(path) as place:
        place.write_text(text, encoding="utf-8")
