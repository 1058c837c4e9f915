"""What the page of a run says, as plain data for its template."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd

from reports import run_view
from reports.facts import fact_list
from reports.findings import load_findings
from reports.run_data import RunData
from reports.run_figures import run_figures
from reports.run_view import Tables
from workbench.errors import RunCorruptError
from workbench.runstore import Run

SECTIONS: tuple[tuple[str, str], ...] = (
    ("summary", "Summary"),
    ("diagnosis", "Diagnosis"),
    ("latency", "Latency"),
    ("parts", "Where the time goes"),
    ("timeline", "Timeline"),
    ("steps", "Engine steps"),
    ("hardware", "Hardware"),
    ("requests", "Requests"),
    ("environment", "Environment"),
    ("reproduce", "Reproduce"),
)
_SHOWN_REQUESTS = 15


def run_context(run: Run) -> dict[str, Any]:
    """Everything ``run.html.j2`` prints; what can't be read is named on the page instead."""
    manifest = run.manifest
    tables = Tables.read(RunData.of(run.path, manifest))
    problems = list(tables.problems)
    try:
        metrics = run.metrics()
    except RunCorruptError as error:
        metrics = None
        problems.append(str(error))
    try:
        diagnosis = load_findings(run)
    except RunCorruptError as error:
        diagnosis = None
        problems.append(str(error))
    validity = (metrics or {}).get("validity") or {}
    return {
        "run": manifest,
        "name": run_view.display_name(manifest),
        "valid": validity.get("valid"),
        "reasons": validity.get("reasons") or [],
        "sections": SECTIONS,
        "problems": problems,
        "tiles": run_view.tiles(metrics),
        "diagnosis": diagnosis,
        "latency": run_view.latency_table(metrics),
        "statistics": run_view.STATISTICS,
        "figures": run_figures(run, tables, metrics),
        "slowest": slowest(tables.requests),
        "total": 0 if tables.requests is None else len(tables.requests),
        "environment": run_view.facts(manifest),
        "echo": fact_list(manifest.target.echo or {}),
        "command": shlex.join(manifest.command),
    }


def slowest(requests: pd.DataFrame | None, count: int = _SHOWN_REQUESTS) -> list[dict[str, Any]]:
    """Failed requests, then the slowest first tokens; missing values are None."""
    if requests is None:
        return []
    order = requests.assign(ok=requests["status"] == "ok")
    order = order.sort_values(["ok", "ttft_ms"], ascending=[True, False], na_position="first").head(count)
    rows = order.astype(object).where(order.notna(), None).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]
