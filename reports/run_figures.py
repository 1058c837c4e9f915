"""Every figure of a run's report, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.figures import latency, split, style, telemetry, timeline
from reports.figures import steps as step_figures
from reports.render import Figure
from reports.roofline import roofline_of
from reports.run_view import Tables, bucket, display_name, slo_bounds
from reports.time_split import time_split
from workbench.errors import RunCorruptError
from workbench.runstore import Run

SHOWN_REQUESTS = 80
"""Requests in the report's timeline: it can't be asked for another window."""


def run_figures(run: Run, tables: Tables, metrics: Mapping[str, Any] | None) -> dict[str, Figure]:
    """Figures in the order of the page; one whose data can't be read says so in its place."""
    name, bounds = display_name(run.manifest), slo_bounds(metrics, run.manifest)
    samples = {name: latency.latencies(tables.requests, tables.gaps)}
    width = bucket(tables.duration_s())
    window, note = _window(tables)
    shown = tables.alive(window)
    parts, trouble = _parts(run)
    lost = telemetry.unavailable(tables.telemetry) if tables.telemetry is not None else ""

    def of_parts(draw: Callable[[pd.DataFrame | None], go.Figure]) -> go.Figure:
        return style.empty(trouble) if trouble else draw(parts)

    found = [
        (
            "latency",
            "Distribution of latencies",
            "Share of requests (TTFT, E2E) or tokens (ITL) at most this slow; dashed: the SLO.",
            latency.ecdf(samples, bounds),
        ),
        (
            "tail",
            "Tails of latencies",
            "The same the other way round on two log axes: the share that is slower than this.",
            latency.ccdf(samples, bounds),
        ),
        (
            "ttft-split",
            "Where the time to the first token goes",
            "Mean parts of requests by how long they waited for it; a request's parts sum to its TTFT "
            "exactly.",
            of_parts(split.ttft_split),
        ),
        (
            "slo-misses",
            "Which part missed the objectives",
            "A request counts for the part of its time that was the furthest above the median of those that "
            "met the objective.",
            of_parts(lambda frame: split.slo_misses(frame, bounds)),
        ),
        (
            "timeline",
            "Requests over time above the engine's steps",
            "A row per request in the order they were sent; on the same time axis, what the engine did. "
            f"Drag to zoom: all strips follow.{note}",
            timeline.timeline(
                shown.spans, tables.requests, tables.steps, window, tables.lives.source, shown.alive
            ),
        ),
        (
            "throughput",
            "Output tokens per second over time",
            "Tokens counted by the time they arrived at the client.",
            _throughput(tables, width),
        ),
        (
            "phases",
            "Where a step's time goes",
            "Mean per phase.",
            step_figures.step_phases(tables.steps),
        ),
        (
            "step-cost",
            "Step time against tokens",
            "A dot per step.",
            step_figures.step_cost(tables.steps),
        ),
        (
            "decode-cost",
            "Decode step time against context",
            "Decode-only steps; dashed: a least-squares fit; dotted: reading the weights and the KV once, at "
            "the read bandwidth measured on this machine. Colour is the batch size.",
            step_figures.decode_cost(tables.steps, roofline_of(run.manifest)),
        ),
        (
            "telemetry",
            "Hardware while the run lasted",
            f"Not available: {lost}." if lost else "All collectors delivered.",
            telemetry.telemetry(tables.telemetry),
        ),
    ]
    return {key: Figure(f"fig-{key}", title, caption, figure) for key, title, caption, figure in found}


def _window(tables: Tables) -> tuple[tuple[float, float] | None, str]:
    """The whole run, or of a long one the lives of its first requests, and what to say about that."""
    end = tables.duration_s()
    requests = tables.requests
    if end <= 0:
        return None, ""
    if requests is None or len(requests) <= SHOWN_REQUESTS:
        return (0.0, end), ""
    closed = requests["close_s"].head(SHOWN_REQUESTS).max()
    until = min(end, float(closed)) if pd.notna(closed) else end
    note = f" The first {SHOWN_REQUESTS} of {len(requests):,} requests; the dashboard shows any window."
    return (0.0, until), note


def _parts(run: Run) -> tuple[pd.DataFrame | None, str]:
    try:
        return time_split(run), ""
    except RunCorruptError as error:
        return None, str(error)


def _throughput(tables: Tables, width: float) -> go.Figure:
    try:
        return step_figures.throughput(tables.data.tokens_over_time(width), width, tables.requests)
    except RunCorruptError as error:
        return style.empty(str(error))
