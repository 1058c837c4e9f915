"""Capacity: the highest rate at which enough requests meet their objectives, and the runs that say so."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from experiments.capacity.models import CapacityResult, RateRun
from reports.dashboard import store, ui
from reports.facts import Tile, fact_list
from reports.figures import capacity as figures
from reports.markdown import escape
from reports.metric_names import number
from workbench.errors import RunCorruptError

_HOW = "Make one with `workbench capacity --slo 'ttft:2000 itl:100'`."
_STATES = {"PASSED": "✓ passed", "MISSED": "✕ missed", "VOID": "void", "FAILED": "failed"}


def _sentence(found: CapacityResult) -> str:
    """The answer in words."""
    goal = f"{found.spec.target_ratio:.0%} of the requests within {found.spec.slo}"
    lowest, highest = number(found.lowest), number(found.highest)
    return {
        "rate": f"Up to {number(found.rate)} requests/s keep {goal}.",
        "below the lowest tried": f"Not even {lowest} requests/s, the lowest rate tried, keep {goal}.",
        "above the highest tried": f"{highest} requests/s, the highest rate tried, still keep {goal}.",
    }.get(
        found.answer,
        f"Not known: the runs single out no rate from {lowest} to {highest} requests/s that keeps {goal}.",
    )


def _interval(found: CapacityResult) -> str:
    if found.low is None or found.high is None:
        return "no interval"
    return f"95 % credible: {number(found.low)} to {number(found.high)}"


def _head(found: CapacityResult) -> None:
    st.title(f"Capacity on {escape(found.spec.workload)}")
    ui.fragment("lead", text=_sentence(found))
    counted = [run for run in found.runs if run.state in ("PASSED", "MISSED")]
    words = {
        "budget": "The search ended at its budget, before the interval was as narrow as asked for: read the "
        "interval, not only the rate.",
        "interrupted": "The search was interrupted.",
        "failed": "The search failed.",
        "running": "This search is still running.",
    }.get(found.status)
    if words:
        st.warning(words)
    ui.tiles(
        [
            Tile("Capacity", "–" if found.rate is None else f"{number(found.rate)} req/s", _interval(found)),
            Tile("Objectives", found.spec.slo, f"for {found.spec.target_ratio:.0%} of the requests"),
            Tile("Runs that count", f"{len(counted)} of {len(found.runs)}", f"{found.spec.seconds:g} s each"),
            Tile(
                "Range searched", f"{number(found.lowest)} – {number(found.highest)}", "requests per second"
            ),
        ]
    )


def _runs(found: CapacityResult) -> None:
    st.subheader("Probes, in order")
    known = {info.id for info in store.readable_runs()}
    rows = [_row(place, run, known) for place, run in enumerate(found.runs, start=1)]
    if not rows:
        st.caption("No run has ended yet.")
        return
    config: dict[str, Any] = {
        "open": st.column_config.LinkColumn("", display_text="open ↗", width=70),
        "rate (req/s)": st.column_config.NumberColumn(format="%.3f"),
        "goodput": st.column_config.NumberColumn(format="percent"),
        "note": st.column_config.TextColumn(width="large"),
    }
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, column_config=config, placeholder="–", alt="Runs of the search"
    )
    st.caption(
        "A run passes when its share of good requests reaches the target and its queue does not grow. Void "
        "runs (the client or the configuration was at fault) and failed ones do not count."
    )


def _row(place: int, run: RateRun, known: set[str]) -> dict[str, Any]:
    return {
        "open": ui.link("run", run=run.run) if run.run in known and run.run else None,
        "#": place,
        "rate (req/s)": run.rate,
        "result": _STATES.get(run.state, run.state),
        "good": run.good,
        "offered": run.offered,
        "goodput": run.ratio,
        "queue": {True: "stable", False: "grows", None: "?"}[run.stable],
        "note": run.reason or None,
    }


def _page(capacity_id: str) -> None:
    try:
        found = store.capacity(capacity_id)
    except RunCorruptError as error:
        st.error(f"This search can't be read: {escape(error)}")
        return
    _head(found)
    st.subheader("Goodput against rate")
    ui.chart(figures.goodput_against_rate(found), "capacity", "Goodput ratio against the offered rate")
    st.caption(
        "Line and band: the rate at which half of the runs meet the target, with its 95 % credible interval. "
        "Near it a run passes by chance; one odd run decides nothing."
    )
    _runs(found)
    with st.expander("Question, engine and machine"):
        spec = found.spec.model_dump(mode="json", exclude={"workload_spec"})
        ui.fragment("facts", pairs=[*fact_list(spec), *fact_list(found.machine, "machine.")])


listed = store.capacities()
readable = {study.id: study for study in listed if study.result}
for study in listed:
    if study.result is None:
        st.warning(f"{escape(study.id)} can't be read: {escape(study.error or 'unknown reason')}")
if not readable:
    st.title("Capacity")
    ui.nothing(f"This store has no readable capacity search yet. {_HOW}")
else:
    names = {i: f"{s.result.spec.workload} — {i}" for i, s in readable.items() if s.result}
    chosen = ui.choose("Capacity search", "capacity", list(readable), names)
    if chosen:
        _page(chosen)
