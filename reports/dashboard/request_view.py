"""Requests of a run: a table, and one request's life from queue to last token."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from reports.dashboard import store, ui
from reports.figures import timeline
from reports.markdown import escape
from reports.metric_names import number

_COLUMNS = {
    "request_id": "Request",
    "group": "Group",
    "status": "Status",
    "error_class": "Error",
    "sent_s": "Sent (s)",
    "ttft_ms": "TTFT (ms)",
    "e2el_ms": "E2E (ms)",
    "prompt_tokens": "Prompt tokens",
    "cached_tokens": "Cached tokens",
    "output_tokens": "Output tokens",
    "finish_reason": "Finish",
}
_MAX_ROWS = 10_000


def show(page: store.RunPage) -> None:
    """The requests tab of a run."""
    requests = page.tables.requests
    if requests is None or requests.empty:
        ui.nothing("This run has no measured request.")
        return
    groups = sorted(requests["group"].dropna().unique())
    states = sorted(requests["status"].dropna().unique())
    picked_groups: list[str] = []
    status: list[str] = []
    if len(groups) > 1:
        picked_groups = st.multiselect("Groups", groups, placeholder="all groups")
    if len(states) > 1:
        status = st.segmented_control("Status", states, selection_mode="multi", format_func=escape) or []
    shown = requests
    if picked_groups:
        shown = shown[shown["group"].isin(picked_groups)]
    if status:
        shown = shown[shown["status"].isin(status)]
    note = f", the first {_MAX_ROWS:,} listed" if len(shown) > _MAX_ROWS else ""
    st.caption(f"{len(shown):,} of {len(requests):,} requests{note}. Tick one to see its life.")
    shown = shown.head(_MAX_ROWS)
    config = {key: st.column_config.Column(label) for key, label in _COLUMNS.items()}
    for key in ("sent_s", "ttft_ms", "e2el_ms"):
        config[key] = st.column_config.NumberColumn(
            _COLUMNS[key], format="%.3f" if key == "sent_s" else "%.1f"
        )
    event = st.dataframe(
        shown[list(_COLUMNS)],
        hide_index=True,
        column_config=config,
        on_select="rerun",
        selection_mode="single-row",
        key="requests_table",
        placeholder="–",
        alt="Requests of this run",
    )
    rows = [i for i in event.selection.rows if i < len(shown)]
    if rows:
        _detail(page, shown.iloc[rows[0]].to_dict())
    else:
        _by_name(page, shown)


def _by_name(page: store.RunPage, shown: pd.DataFrame) -> None:
    ids = shown["request_id"].dropna().tolist()
    asked = st.query_params.get("request")
    if asked is not None and asked != st.session_state.get("last_request"):
        if asked not in ids:
            st.warning(f"There is no request called {escape(asked)} among these.")
        st.session_state["request"] = asked if asked in ids else None
    elif st.session_state.get("request") not in ids:
        st.session_state["request"] = None
    chosen = st.selectbox(
        "Or choose a request by its id", ids, index=None, placeholder="request id", key="request"
    )
    st.session_state["last_request"] = chosen
    if chosen is None:
        st.query_params.pop("request", None)
    else:
        st.query_params["request"] = chosen
        _detail(page, shown[shown["request_id"] == chosen].iloc[0].to_dict())


def _detail(page: store.RunPage, row: dict[Any, Any]) -> None:
    request = str(row["request_id"])
    st.subheader(escape(f"Request {request}"))
    facts = [
        ("Status", f"{row['status']} {'' if pd.isna(row['error_class']) else row['error_class']}".strip()),
        ("Group", "–" if pd.isna(row["group"]) else str(row["group"])),
        ("TTFT", f"{number(row['ttft_ms'])} ms"),
        ("End to end", f"{number(row['e2el_ms'])} ms"),
        ("Prompt, cached, output tokens", _counts(row)),
    ]
    if not pd.isna(row["error"]):
        facts.append(("Error", str(row["error"])))
    mine = page.tables.lives.of(request)
    by_phase: dict[str, float] = {}
    for span in mine:
        by_phase[span.phase] = by_phase.get(span.phase, 0.0) + 1000 * (span.end_s - span.start_s)
    facts += [(f"Time in {phase}", f"{number(ms)} ms") for phase, ms in by_phase.items()]
    ui.fragment("facts", pairs=facts)
    if not mine:
        return
    window = (min(s.start_s for s in mine) - 0.01, max(s.end_s for s in mine) + 0.01)
    st.caption("All requests that were alive at the same time, and the engine's steps below.")
    shown = page.tables.alive(window)
    figure = timeline.timeline(
        shown.spans, page.tables.requests, page.tables.steps, window, page.tables.lives.source, shown.alive
    )
    ui.chart(figure, "request-timeline", f"Timeline of request {request}")
    step = next((s.step_id for s in mine if s.step_id is not None), None)
    if step is not None:
        st.page_link(
            ui.XRAY_VIEW,
            label=f"See step {step}, its first, in the X-ray",
            icon=":material/view_timeline:",
            query_params={"run": page.id, "step": str(step)},
        )


def _counts(row: dict[Any, Any]) -> str:
    return ", ".join(number(row[key]) for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
