"""Sweep: the answer, and the evidence under it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from reports.dashboard import store, ui
from reports.facts import fact_list
from reports.figures import noise, pareto
from reports.figures import sweep as sweep_figures
from reports.figures.sweep import sweep_metrics
from reports.html import sweep_html
from reports.markdown import escape
from reports.metric_names import metric_name
from reports.pairing import level_key, ordered_levels
from reports.sweep_page import noise_facts, tiles
from workbench.errors import RunCorruptError

TABS = ("Response", "Levels", "Noise", "Hypothesis", "Changed factor", "Runs")


def _answer(page: store.SweepPage) -> None:
    sweep = page.result
    st.title(escape(sweep.question))
    ui.fragment("lead", text=sweep.conclusion)
    ui.tiles(tiles(sweep))
    if not sweep.valid:
        ui.validity(False, sweep.invalid_reasons, "sweep")
    if sweep.status != "complete":
        st.warning(f"This sweep is not complete: {escape(sweep.status)}.")
    levels = ordered_levels(sweep)
    ui.fragment(
        "verdicts",
        sweep=sweep,
        metrics=sweep_metrics(sweep),
        levels=levels,
        flagged=any(ratio.flagged for level in levels for ratio in level.ratio.values()),
    )


def _response(page: store.SweepPage) -> None:
    ui.chart(sweep_figures.response(page.result), "response", "Change of each metric against the baseline")
    st.caption(
        "Dots are blocks, the bar is the 95 % interval, the symbol its point estimate. Dashed: the effect of "
        "interest. Grey band: the baseline against itself."
    )


def _levels(page: store.SweepPage) -> None:
    ui.chart(sweep_figures.levels(page.result, sweep_metrics(page.result)), "levels", "Values per level")
    ui.chart(pareto.pareto(page.result), "pareto", "Time to first token against throughput")


def _noise(page: store.SweepPage) -> None:
    ui.chart(noise.aa_and_drift(page.result), "noise", "A/A and drift")
    ui.fragment("facts", pairs=noise_facts(page.result))


def _hypothesis(page: store.SweepPage) -> None:
    if page.result.hypothesis:
        ui.fragment("hypothesis", sweep=page.result)
    else:
        ui.nothing("No hypothesis was stored with this sweep.")


def _factor(page: store.SweepPage) -> None:
    sweep, proof = page.result, page.proof
    if proof.proven:
        st.success(
            f"One factor changed: {escape(sweep.field)}. {proof.compared} engines told their settings."
        )
    elif proof.others:
        st.error("More differs than the factor: " + ", ".join(escape(d.key) for d in proof.others))
    else:
        st.warning("Not proven: the runs have no readable configuration echo that shows the factor.")
    if proof.shown:
        labels = [level_key(level.value) for level in ordered_levels(sweep)]
        caption = "Settings that differ between levels, as echoed by the engines"
        ui.fragment("differences", rows=proof.shown, labels=labels, caption=caption)
    equivalence = sweep.equivalence
    st.subheader("Outputs")
    ui.fragment(
        "facts",
        pairs=[
            ("Identical", f"{equivalence.identical} of {equivalence.compared}"),
            ("Note", equivalence.note),
        ],
    )
    for title, part in (
        ("Engine settings", sweep.engine),
        ("Workload", sweep.workload),
        ("Machine", sweep.machine),
    ):
        if part:
            st.subheader(title)
            ui.fragment("facts", pairs=fact_list(part))


def _cells(page: store.SweepPage) -> None:
    sweep = page.result
    metrics = sweep_metrics(sweep)
    known = {info.id for info in store.readable_runs()}
    rows = [
        {
            "open": ui.link("run", run=cell.run) if cell.run in known and cell.run else None,
            "run": cell.run,
            "block": str(cell.block) if cell.phase == "sweep" else cell.phase,
            "position": cell.position,
            "level": level_key(cell.level) + (" (baseline)" if cell.baseline_copy is not None else ""),
            "state": cell.state.lower() + (f": {cell.reason}" if cell.reason else ""),
            **{m: cell.metrics.get(m) for m in metrics},
        }
        for cell in sweep.cells
    ]
    config: dict[str, Any] = {
        "open": st.column_config.LinkColumn("", display_text="open ↗", width=70),
        "run": st.column_config.TextColumn("Run"),
        "level": st.column_config.TextColumn(sweep.factor),
    }
    for metric in metrics:
        share = metric_name(metric).unit == "share"
        label = metric_name(metric).label if share else metric_name(metric).axis
        config[metric] = st.column_config.NumberColumn(label, format="percent" if share else "%.1f")
    st.dataframe(pd.DataFrame(rows), hide_index=True, column_config=config, alt="All runs of the sweep")
    st.subheader("Reproduce")
    st.code(sweep.reproduce, language=None, wrap_lines=True)
    st.download_button(
        "Download the report (HTML)",
        data=lambda: sweep_html(page.path),
        file_name="sweep-report.html",
        mime="text/html",
        icon=":material/download:",
    )


def _page(sweep_id: str) -> None:
    try:
        page = store.sweep_page(sweep_id)
    except RunCorruptError as error:
        st.error(f"This sweep can't be read: {escape(error)}")
        return
    _answer(page)
    draw = (_response, _levels, _noise, _hypothesis, _factor, _cells)
    ui.tabs(TABS, [partial(content, page) for content in draw])


found = store.sweeps()
readable = {info.id: info for info in found if info.result}
for info in found:
    if info.result is None:
        st.warning(f"{escape(info.id)} can't be read: {escape(info.error or 'unknown reason')}")
if not readable:
    st.title("Sweep")
    ui.nothing("This store has no readable sweep yet. Make one with `workbench sweep --param chunk_size`.")
else:
    labels = {i: f"{info.result.factor} — {i}" for i, info in readable.items() if info.result}
    chosen = ui.choose("Sweep", "sweep", list(readable), labels)
    if chosen:
        _page(chosen)
