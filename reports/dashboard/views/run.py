"""Run: one run in full."""

from __future__ import annotations

import shlex
from functools import partial

import streamlit as st

from reports import run_view
from reports.dashboard import findings_view, request_view, store, ui
from reports.facts import fact_list
from reports.figures import latency, split, telemetry, timeline
from reports.figures import steps as step_figures
from reports.html import run_html
from reports.markdown import escape
from reports.roofline import roofline_of
from workbench.errors import RunCorruptError

TABS = (
    "Latency",
    "Where time goes",
    "Findings",
    "Timeline",
    "Requests",
    "Steps",
    "Hardware",
    "Configuration",
)
_WINDOW_REQUESTS = 80


def _header(page: store.RunPage) -> None:
    manifest = page.manifest
    st.title(escape(run_view.display_name(manifest)))
    with st.container(horizontal=True, vertical_alignment="center"):
        validity = (page.metrics or {}).get("validity") or {}
        if validity.get("valid") is True:
            st.badge("valid", icon=":material/check:", color="green")
        elif validity.get("valid") is False:
            st.badge("not valid", icon=":material/close:", color="orange")
        if manifest.status != "complete":
            st.badge(manifest.status, color="yellow")
        st.caption(
            " · ".join(
                escape(part)
                for part in (
                    page.id,
                    manifest.created[:19].replace("T", " ") + " UTC",
                    manifest.target.model or "unknown model",
                    manifest.machine.get("cpu") or "unknown machine",
                )
            )
        )
    if manifest.error:
        st.error(escape(manifest.error))
    for problem in page.tables.problems:
        st.warning(escape(problem))
    found = run_view.tiles(page.metrics)
    if found:
        ui.tiles(found)
        if not validity.get("valid"):
            ui.validity(validity.get("valid"), validity.get("reasons") or [], "run")
    else:
        st.warning("This run has no computed metrics.")
    if manifest.status == "running":
        st.page_link(ui.LIVE_VIEW, label="Follow it live", icon=":material/sensors:")
    _bottleneck(page.id)


def _bottleneck(run_id: str) -> None:
    """The costliest finding, if the run was diagnosed."""
    try:
        found = store.findings(run_id)
    except RunCorruptError:
        return  # the findings tab says why
    if found is not None and found.top is not None:
        st.info(
            f"**Bottleneck:** {escape(found.top.claim)} (confidence {found.top.confidence}; evidence in the "
            "tab Findings)",
            icon=":material/troubleshoot:",
        )


def _latency(page: store.RunPage) -> None:
    samples = latency.latencies(page.tables.requests, page.tables.gaps)
    bounds = run_view.slo_bounds(page.metrics, page.manifest)
    kinds = ("Distribution", "Tails (log axes)")
    draw = latency.ecdf if ui.one_of("Latencies as", "latency", kinds) == kinds[0] else latency.ccdf
    figure = draw({run_view.display_name(page.manifest): samples}, bounds)
    ui.first_chart(figure, "ecdf", "Latencies of this run")
    rows = run_view.latency_table(page.metrics)
    if rows:
        # No data frame: five rows are not worth 2 MB of script that the browser would have to run first.
        ui.fragment("latencies", rows=rows, statistics=run_view.STATISTICS)
    figure = step_figures.throughput(page.tokens, page.bucket_s, page.tables.requests)
    st.subheader("Throughput over time")
    ui.chart(figure, "throughput", "Output tokens per second over time")


def _split(page: store.RunPage) -> None:
    bounds = run_view.slo_bounds(page.metrics, page.manifest)
    try:
        parts = store.split_of(page.id)
    except RunCorruptError as error:
        st.error(f"The time of the requests can't be split: {escape(error)}")
        return
    st.subheader("Where the time to the first token goes")
    ui.chart(split.ttft_split(parts), "ttft-split", "Mean parts of the time to first token")
    st.caption("Requests by how long they waited for it. The parts of a request sum to its TTFT exactly.")
    st.subheader("Which part missed the objectives")
    ui.chart(split.slo_misses(parts, bounds), "slo-misses", "Missed objectives by the part at fault")
    st.caption("A request counts for the part that was the furthest above the median of those that met it.")


def _timeline(page: store.RunPage) -> None:
    end = round(page.tables.duration_s(), 3)
    window = None
    requests = page.tables.requests
    if end > 0:
        start_with = end
        if requests is not None and len(requests) > _WINDOW_REQUESTS:
            start_with = float(requests["sent_s"].iloc[_WINDOW_REQUESTS] or end)
        window = st.slider(
            "Window (seconds from the first measured request)",
            0.0,
            end,
            (0.0, min(round(start_with, 3), end)),
            step=max(round(end / 200, 3), 0.001),
        )
    if page.tables.steps is None or not page.tables.traced:
        st.info(
            "This run has no engine trace, so the rows show what the client saw. Traces are written by the "
            "builtin engine."
        )
    shown = page.tables.alive(window)
    figure = timeline.timeline(
        shown.spans, requests, page.tables.steps, window, page.tables.lives.source, shown.alive
    )
    ui.chart(figure, "timeline", "Requests over time above the engine's steps")
    if page.tables.steps is not None and len(page.tables.steps):
        st.page_link(
            ui.XRAY_VIEW,
            label="Look into single steps",
            icon=":material/view_timeline:",
            query_params={"run": page.id},
        )


def _steps(page: store.RunPage) -> None:
    steps = page.tables.steps
    st.subheader("Where a step's time goes")
    ui.chart(step_figures.step_phases(steps), "phases", "Mean time of a step per phase")
    if steps is None:
        return
    left, right = st.columns(2)
    with left:
        st.subheader("Step time against tokens")
        ui.chart(step_figures.step_cost(steps), "step-cost", "Step time against tokens")
    with right:
        st.subheader("Decode step time against context")
        ui.chart(
            step_figures.decode_cost(steps, roofline_of(page.manifest)),
            "decode-cost",
            "Decode step time against context",
        )


def _hardware(page: store.RunPage) -> None:
    samples = page.tables.telemetry
    ui.chart(telemetry.telemetry(samples), "telemetry", "Hardware while the run lasted")
    lost = telemetry.unavailable(samples) if samples is not None else ""
    if lost:
        st.caption(f"Not available: {escape(lost)}")


def _configuration(page: store.RunPage) -> None:
    for title, pairs in run_view.facts(page.manifest):
        st.subheader(title)
        ui.fragment("facts", pairs=pairs)
    if page.manifest.target.echo:
        with st.expander("Settings in force, as echoed by the target"):
            ui.fragment("facts", pairs=fact_list(page.manifest.target.echo))
    st.subheader("Command")
    st.code(shlex.join(page.manifest.command) or "no command was stored", language=None, wrap_lines=True)
    st.download_button(
        "Download the report (HTML)",
        data=lambda: run_html(store.open_run(page.id)),
        file_name="run-report.html",
        mime="text/html",
        icon=":material/download:",
    )


def _page(run_id: str) -> None:
    try:
        page = store.run_page(run_id)
    except RunCorruptError as error:
        st.error(f"This run can't be read: {escape(error)}")
        return
    _header(page)
    draw = (
        _latency,
        _split,
        findings_view.show,
        _timeline,
        request_view.show,
        _steps,
        _hardware,
        _configuration,
    )
    ui.tabs(TABS, [partial(content, page) for content in draw])


known = {info.id: info for info in store.readable_runs()}
if not known:
    st.title("Run")
    ui.nothing("This store has no readable run yet. Make one with `workbench bench`.")
else:
    labels = store.labels(known)
    chosen = ui.choose("Run", "run", list(known), labels)
    if chosen:
        _page(chosen)
