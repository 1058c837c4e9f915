"""Compare: two to six runs. What differs in their settings comes first, then what they measured."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from reports import run_view
from reports.config_diff import differences
from reports.dashboard import store, ui
from reports.figures import compare, latency
from reports.figures.compare import DEFAULT, interval
from reports.markdown import escape
from reports.metric_names import metric_name, number, with_unit
from workbench.errors import RunCorruptError
from workbench.metrics import flat

_MOST = 6


def _open(ids: list[str]) -> dict[str, store.RunPage]:
    """Pages by what the runs are called here: their names where these tell them apart."""
    pages = {}
    for run_id in ids:
        try:
            pages[run_id] = store.run_page(run_id)
        except RunCorruptError as error:
            st.error(f"{escape(run_id)} can't be read: {escape(error)}")
    names = [run_view.display_name(page.manifest) for page in pages.values()]
    if len(set(names)) < len(names):
        names = [f"{name} · {run_id[-6:]}" for name, run_id in zip(names, pages, strict=True)]
    if len(set(names)) < len(names):
        return pages
    return dict(zip(names, pages.values(), strict=True))


def _settings(pages: dict[str, store.RunPage]) -> None:
    st.subheader("What differs")
    configs = {
        i: {
            "model": page.manifest.target.model,
            "target": page.manifest.target.kind,
            "engine": page.manifest.target.echo or page.manifest.target.requested,
            "workload": page.manifest.workload,
            "workload_sha256": page.manifest.workload_sha256[:12],
            "load": page.manifest.load,
            "seed": page.manifest.seed,
            "machine": page.manifest.machine,
        }
        for i, page in pages.items()
    }
    found = [d for d in differences(configs) if not d.per_run]
    if not found:
        st.success("Nothing: settings, workload and machine are the same.")
        return
    ui.fragment("differences", rows=found, labels=list(pages), caption="Settings, workload and machine")
    workloads = {page.manifest.workload_sha256 for page in pages.values()}
    if len(workloads) > 1:
        st.warning("These runs did not serve the same requests; a difference may come from the traffic.")


def _measured(pages: dict[str, store.RunPage]) -> None:
    st.subheader("What they measured")
    measured = {i: page.metrics for i, page in pages.items() if page.metrics}
    ui.chart(compare.metrics(measured), "compare-metrics", "Metrics of the runs with intervals")
    st.caption(
        "Bars are bootstrap intervals inside one run. They do not hold what changes between runs: use a "
        "sweep to claim a difference."
    )
    rows = []
    for run_id, metrics in measured.items():
        values, row = flat(metrics), {"run": run_id}
        for key in DEFAULT:
            low, high = interval(metrics, key)
            inside = "" if low is None else f" [{number(low)}, {number(high)}]"
            row[metric_name(key).label] = with_unit(key, values.get(key)) + inside
        row["valid"] = {True: "✓", False: "✕", None: "?"}[(metrics.get("validity") or {}).get("valid")]
        rows.append(row)
    if rows:
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Metrics of the runs")
    st.subheader("Latency distributions")
    samples = {i: latency.latencies(p.tables.requests, p.tables.gaps) for i, p in pages.items()}
    ui.chart(latency.ecdf(samples), "compare-ecdf", "Latency distributions of the runs")


st.title("Compare runs")
known = {info.id: info for info in store.readable_runs()}
if len(known) < 2:
    ui.nothing("Two readable runs are needed to compare; this store has fewer.")
else:
    unknown = [i for i in st.query_params.get_all("runs") if i not in known]
    if unknown:
        st.warning("Not in this store, or not readable: " + ", ".join(escape(i) for i in unknown))
    names = store.labels(known)
    asked = [i for i in st.query_params.get_all("runs") if i in known][:_MOST]
    if asked and asked != st.session_state.get("last_compared"):
        st.session_state["compared"] = asked
    chosen = st.multiselect(
        "Runs",
        list(known),
        key="compared",
        max_selections=_MOST,
        format_func=lambda i: names.get(i, i),
        placeholder=f"Choose 2 to {_MOST} runs",
    )
    st.session_state["last_compared"] = chosen
    st.query_params["runs"] = chosen
    if len(chosen) < 2:
        ui.nothing(f"Choose 2 to {_MOST} runs above, or tick them on the Runs page.")
    else:
        opened = _open(chosen)
        if len(opened) >= 2:
            _settings(opened)
            _measured(opened)
