"""Every figure there is, from what lies in a run store and from empty and damaged data.

python -m tests.reports.gallery STORE OUT [--scheme light|dark]

writes a picture of each figure to OUT, through Chromium, to be looked at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from reports.figures import (
    capacity,
    compare,
    frontier,
    gate,
    latency,
    rates,
    split,
    style,
    telemetry,
    timeline,
    xray,
)
from reports.figures import steps as step_figures
from reports.rate_points import points_of_capacity, points_of_runs, points_of_sweep
from reports.roofline import roofline_of
from reports.run_data import RunData
from reports.run_figures import run_figures
from reports.run_view import Tables, display_name
from reports.studies import list_capacities, list_gates
from reports.sweep_page import sweep_figures_of
from reports.sweeps import list_sweeps
from reports.xray import step_view
from workbench.runstore import Run, RunStore

_DRAW = """f => {
  document.getElementById("f").style.height = f.layout.height + "px";
  return Plotly.newPlot("f", f.data, f.layout, {staticPlot: true});
}"""
Named = Iterator[tuple[str, go.Figure]]


def of_store(root: Path) -> Named:
    """Figures of every complete run, sweep, capacity search and gate under ``root``."""
    store = RunStore(root)
    runs = [store.open(info.id) for info in store.list() if info.status == "complete" and not info.sweep_id]
    for run in runs:
        for name, figure in of_run(run):
            yield f"{run.id}-{name}", figure
    metrics = {display_name(run.manifest): run.metrics() for run in runs if run.metrics()}
    if metrics:
        yield from of_runs({label: found or {} for label, found in metrics.items()})
    for info in list_sweeps(root):
        if info.result is None:
            continue
        known = {cell.run: _metrics(store, cell.run) for cell in info.result.cells if cell.run}
        for name, item in sweep_figures_of(info.result).items():
            yield f"{info.id}-{name}", item.figure
        points = points_of_sweep(info.result, known)
        yield f"{info.id}-interactivity", frontier.throughput_interactivity(points, {"itl": 60.0})
    for study in list_capacities(root):
        if study.result is not None:
            yield f"{study.id}-capacity", capacity.goodput_against_rate(study.result)
            found = {run.run: _metrics(store, run.run) for run in study.result.runs if run.run}
            points = points_of_capacity(study.result, found)
            yield f"{study.id}-percentiles", rates.percentiles(points, "ttft")
            r = study.result
            knee = (r.rate, r.low, r.high) if r.rate and r.low and r.high else None
            yield f"{study.id}-goodput", rates.goodput(points, knee)
    gates = [(study.id, study.result) for study in list_gates(root) if study.result is not None]
    for name, result in gates:
        for tier in result.tiers:
            if tier.tier == 2:
                yield f"{name}-wall-clock", gate.wall_clock(tier)
    if gates:
        yield "gate-history", gate.history(gates[::-1])


def _metrics(store: RunStore, run_id: str) -> dict[str, Any] | None:
    """None for a run that has been removed from the store."""
    return store.open(run_id).metrics() if (store.root / run_id).is_dir() else None


def of_run(run: Run) -> Named:
    """Report figures of one run, and those of the X-ray at its busiest step."""
    tables = Tables.read(RunData.of(run.path, run.manifest))
    for name, item in run_figures(run, tables, run.metrics()).items():
        yield name, item.figure
    if tables.steps is not None and len(tables.steps) and tables.traced:
        index = int(np.argmax(tables.steps["num_running"].to_numpy(dtype=float)))
        view = step_view(tables.steps, tables.lives.at(float(tables.steps["start_s"].iloc[index])), index)
        limit = (run.manifest.target.echo or {}).get("max_num_batched_tokens")
        yield "budget", xray.budget(view, limit)
        yield "kv-pool", xray.kv_pool(view)
        yield "around", xray.around(tables.steps, index)


def of_runs(metrics: dict[str, dict[str, Any]]) -> Named:
    """Figures over several runs."""
    points = points_of_runs(metrics)
    yield "compare", compare.metrics(dict(list(metrics.items())[:6]))
    yield "interactivity", frontier.throughput_interactivity(points, {"itl": 60.0})
    for metric in ("ttft", "itl", "e2el"):
        yield f"percentiles-{metric}", rates.percentiles(points, metric)
    yield "goodput", rates.goodput(points)


def of_nothing() -> Named:
    """Every figure without data: each must say why it is empty."""
    yield "empty-ecdf", latency.ecdf({})
    yield "empty-ccdf", latency.ccdf({})
    yield "empty-timeline", timeline.timeline([], None, None)
    yield "empty-step-cost", step_figures.step_cost(None)
    yield "empty-decode-cost", step_figures.decode_cost(None)
    yield "empty-phases", step_figures.step_phases(None)
    yield "empty-throughput", step_figures.throughput(None, 1.0)
    yield "empty-telemetry", telemetry.telemetry(None)
    yield "empty-ttft-split", split.ttft_split(None)
    yield "empty-slo", split.slo_misses(None, {"ttft": 100.0})
    yield "empty-interactivity", frontier.throughput_interactivity(None)
    yield "empty-percentiles", rates.percentiles(None)
    yield "empty-goodput", rates.goodput(None)
    yield "empty-compare", compare.metrics({})
    yield "empty-history", gate.history([])


def of_nan(run: Run) -> Named:
    """Figures of a run whose every measured number is missing."""
    tables = Tables.read(RunData.of(run.path, run.manifest))

    def blank(frame: pd.DataFrame | None, *kept: str) -> pd.DataFrame | None:
        if frame is None:
            return None
        numbers = [c for c in frame.select_dtypes("number").columns if c not in kept]
        return frame.assign(**dict.fromkeys(numbers, np.nan))

    requests, gaps, steps = (
        blank(tables.requests),
        blank(tables.gaps),
        blank(tables.steps, "start_s", "end_s"),
    )
    samples = latency.latencies(requests, gaps)
    yield "nan-ecdf", latency.ecdf({"all missing": samples}, {"ttft": 100.0})
    yield "nan-ccdf", latency.ccdf({"all missing": samples}, {"ttft": 100.0})
    yield "nan-timeline", timeline.timeline(tables.alive().spans, requests, steps)
    yield "nan-step-cost", step_figures.step_cost(steps)
    yield "nan-decode-cost", step_figures.decode_cost(steps, roofline_of(run.manifest))
    yield "nan-phases", step_figures.step_phases(steps)
    yield "nan-telemetry", telemetry.telemetry(blank(tables.telemetry))
    points = points_of_runs({"nothing": {}, "torn": {"latency": {"ttft": {"p50": float("nan")}}}})
    yield "nan-interactivity", frontier.throughput_interactivity(points, {"itl": 50.0})
    yield "nan-percentiles", rates.percentiles(points)
    yield "nan-goodput", rates.goodput(points, (1.0, 0.9, 1.1))


def main() -> None:
    """Draw everything and take pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = [*of_store(args.store), *of_nothing()]
    complete = [i.id for i in RunStore(args.store).list() if i.status == "complete"]
    found += of_nan(RunStore(args.store).open(complete[0])) if complete else ()
    theme = style.DARK if args.scheme == "dark" else style.LIGHT
    ground = "#1A1F27" if args.scheme == "dark" else "#FFFFFF"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1140, "height": 900})
        page.set_content(f"<body style='background:{ground};margin:0'><div id=f></div>")
        page.add_script_tag(content=get_plotlyjs())
        for name, figure in found:
            data = json.loads(style.themed(figure, theme).to_json() or "{}")
            page.evaluate(_DRAW, data)
            page.locator("#f").screenshot(path=args.out / f"{name}-{args.scheme}.png")
        chromium.close()
    print(f"{len(found)} figures in {args.out}")


if __name__ == "__main__":
    main()
