"""Runs: the store at a glance."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from reports.dashboard import store, ui
from reports.markdown import escape
from reports.metric_names import metric_name
from reports.sweeps import SweepInfo
from workbench.errors import RunCorruptError
from workbench.runstore import RunInfo

_METRICS = ("ttft_p50", "itl_p50", "itl_p99", "output_tok_s", "goodput_ratio")
_SHOW = ("all", "valid", "not valid", "unreadable")
_MAX_COMPARED = 6
_SHOWN_SWEEPS = 5
# Until all are asked for: to send and draw thousands of rows takes the page its quickness.
_SHOWN_RUNS = 200


def _state(info: RunInfo) -> str:
    if not info.created:
        return "✕ unreadable"
    if info.status != "complete":
        return {"running": "… running", "failed": "✕ failed"}.get(info.status, f"! {info.status}")
    return {True: "✓ valid", False: "✕ not valid", None: "? unchecked"}[info.valid]


def _matches(info: RunInfo, show: str, words: list[str], tags: list[str]) -> bool:
    fits = {
        "all": True,
        "valid": info.valid is True and bool(info.created),
        "not valid": info.valid is False,
        "unreadable": not info.created,
    }[show]
    text = " ".join((info.id, info.name, info.model or "", info.workload, info.status, *info.tags)).lower()
    return fits and all(word in text for word in words) and set(tags) <= set(info.tags)


def _table(found: list[RunInfo]) -> pd.DataFrame:
    rows = [
        {
            "open": ui.link("run", run=info.id) if info.created else None,
            "name": info.name or info.workload or info.id,
            "state": _state(info),
            **{m: info.metrics.get(m) for m in _METRICS},
            "tags": list(info.tags),
            "workload": info.workload,
            "model": info.model,
            "created": info.created[:16].replace("T", " "),
            "run": info.id,
        }
        for info in found
    ]
    return pd.DataFrame(rows)


def _columns() -> dict[str, Any]:
    number = {"ttft_p50": "%.0f", "itl_p50": "%.1f", "itl_p99": "%.1f", "output_tok_s": "%.0f"}
    columns: dict[str, Any] = {
        "open": st.column_config.LinkColumn("", display_text="open ↗", width=70),
        "run": st.column_config.TextColumn("Run"),
        "name": st.column_config.TextColumn("Name", width="medium"),
        "state": st.column_config.TextColumn("State", width=105),
        "tags": st.column_config.ListColumn("Tags", width="small"),
        "model": st.column_config.TextColumn("Model"),
        "workload": st.column_config.TextColumn("Workload"),
        "created": st.column_config.TextColumn("Created (UTC)"),
        "goodput_ratio": st.column_config.NumberColumn("Goodput", format="percent", width=84),
    }
    for key, form in number.items():
        label = "Output (tok/s)" if key == "output_tok_s" else metric_name(key).axis
        columns[key] = st.column_config.NumberColumn(label, format=form, width=108)
    return columns


def _sweeps(found: list[SweepInfo]) -> None:
    if not found:
        return
    st.subheader("Sweeps")
    for info in found[:_SHOWN_SWEEPS]:
        with st.container(border=True):
            if info.result is None:
                st.markdown(f"✕ **{escape(info.id)}** can't be read: {escape(info.error or '')}")
                continue
            left, right = st.columns([5, 1], vertical_alignment="center")
            mark = "✓ valid" if info.result.valid else "✕ not valid"
            left.markdown(f"**{escape(info.result.factor)}** · {mark}  \n{escape(info.result.conclusion)}")
            right.page_link(
                ui.SWEEP_VIEW,
                label="Open sweep",
                icon=":material/arrow_forward:",
                query_params={"sweep": info.id},
            )


def _tags(found: list[RunInfo]) -> list[str]:
    """Tags that a run must have to be shown."""
    known = sorted({tag for info in found for tag in info.tags})
    if not known:
        return []
    picked = st.pills(
        "Tags", known, selection_mode="multi", key="tags", format_func=escape, bind="query-params"
    )
    return list(picked or [])


@st.dialog("Delete for good?", icon=":material/delete:")
def _delete(ids: list[str]) -> None:
    st.markdown("These folders are deleted from the run store, with everything in them:")
    st.markdown("\n".join(f"- {escape(run_id)}" for run_id in ids))
    st.caption("This can't be undone. Reports and sweeps that point to them will lack them.")
    with st.container(horizontal=True):
        if st.button("Delete", type="primary", icon=":material/delete:"):
            trouble = []
            for run_id in ids:
                try:
                    store.remove_run(run_id)
                except RunCorruptError as error:
                    trouble.append(str(error))
            st.session_state["trouble"] = trouble
            st.rerun()
        if st.button("Keep them"):
            st.rerun()


def _actions(chosen: list[RunInfo]) -> None:
    readable = [info for info in chosen if info.created]
    with st.container(horizontal=True):
        if len(readable) == 1 and st.button("Open run", type="primary", icon=":material/monitoring:"):
            st.switch_page(ui.RUN_VIEW, query_params={"run": readable[0].id})
        fits = 2 <= len(readable) <= _MAX_COMPARED
        if fits and st.button("Compare", type="primary", icon=":material/compare_arrows:"):
            st.switch_page(ui.COMPARE_VIEW, query_params={"runs": [info.id for info in readable]})
        if chosen and st.button(f"Delete {len(chosen)} …", icon=":material/delete:"):
            _delete([info.id for info in chosen])
    if not chosen:
        st.caption(f"Tick one run to open it, 2 to {_MAX_COMPARED} to compare them.")
    elif len(readable) > _MAX_COMPARED:
        st.caption(f"At most {_MAX_COMPARED} runs can be compared.")


def _listed(shown: list[RunInfo], note: str) -> list[RunInfo]:
    """As many as the table holds; all of them when the reader asks for them. Says which under ``note``."""
    if len(shown) <= _SHOWN_RUNS:
        st.caption(note)
        return shown
    with st.container(horizontal=True, vertical_alignment="center"):
        place = st.empty()
        every = st.toggle(f"List all {len(shown)}", value=False, key="every", bind="query-params")
    listed = shown if every else shown[:_SHOWN_RUNS]
    place.caption(note if every else f"{note}; the newest {len(listed)} are listed")
    return listed


def _runs(found: list[RunInfo]) -> None:
    if not found:
        ui.nothing(
            "This store has no runs yet. Make one with `workbench bench`, or a whole study with "
            "`workbench sweep --param chunk_size`; this page finds it when you reload."
        )
        return
    st.subheader("Runs")
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    words = left.text_input(
        "Filter", placeholder="id, name, model, tag …", icon=":material/search:", key="q", bind="query-params"
    )
    show = middle.segmented_control(
        "Show", _SHOW, default="all", required=True, key="show", bind="query-params"
    )
    members = right.toggle("Runs of sweeps, too", value=False, key="members", bind="query-params")
    tags = _tags(found)
    shown = [
        info
        for info in found
        if (members or not info.sweep_id)
        and _matches(info, show or "all", (words or "").lower().split(), tags)
    ]
    hidden = sum(1 for info in found if info.sweep_id) if not members else 0
    note = f", {hidden} runs of sweeps hidden" if hidden else ""
    shown = _listed(shown, f"{len(shown)} of {len(found)} runs{note}")
    if not shown:
        ui.nothing("No run fits this filter.")
        return
    picked = st.dataframe(
        _table(shown),
        hide_index=True,
        column_config=_columns(),
        on_select="rerun",
        selection_mode="multi-row",
        key="runs_table",
        placeholder="–",
        alt="Runs of the store",
    )
    _actions([shown[i] for i in picked.selection.rows if i < len(shown)])
    for info in shown:
        if not info.created:
            st.warning(f"{escape(info.id)} can't be read: {escape(info.error or 'unknown reason')}")


st.title("Runs and sweeps")
for trouble in st.session_state.pop("trouble", []):
    st.error(f"Not deleted: {escape(trouble)}")
sweeps, runs = store.overview()
_sweeps(sweeps)
_runs(runs)
