"""Live: what is being written into the store right now, looked at every two seconds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from experiments.models import Cell
from reports import run_view
from reports.dashboard import live, store, ui
from reports.facts import Tile
from reports.figures import xray as figures
from reports.markdown import escape
from reports.metric_names import metric_name, number
from reports.pairing import level_key
from workbench.errors import RunCorruptError
from workbench.runstore import RunInfo

EVERY_S = 2.0
# What was written that recently is taken for something that goes on.
_FRESH_S = 900.0
_STRIP_STEPS = 400
_METRICS = ("ttft_p50", "itl_p50", "output_tok_s", "goodput_ratio")


def _running() -> list[RunInfo]:
    """Runs that a living process writes. Manifests of runs that say so are read anew: a process may die
    without changing a file.
    """
    return [info for info in store.runs() if info.status == "running" and store.still_running(info)]


def _run(info: RunInfo) -> None:
    try:
        run = store.open_run(info.id)
    except RunCorruptError as error:
        st.warning(escape(error))
        return
    found = live.run_progress(run.path, run.manifest, time.time_ns())
    st.subheader(escape(run_view.display_name(run.manifest)))
    st.caption(f"{escape(info.id)} · {escape(run.manifest.target.model or 'unknown model')} · {found.phase}")
    text = f"{found.finished} of {found.planned} requests" if found.planned else f"{found.finished} requests"
    left = f", about {live.clock(found.eta_s)} left" if found.eta_s is not None else ""
    if found.planned:
        st.progress(min(1.0, found.finished / found.planned), text=f"{text}{left}")
    ui.tiles(
        [
            Tile("Elapsed", "–" if found.elapsed_s is None else live.clock(found.elapsed_s)),
            Tile("Requests finished", f"{found.finished}", f"of {number(found.planned)}"),
            Tile("Running", number(found.running), "in the newest step"),
            Tile("Waiting", number(found.waiting), "in the newest step"),
            Tile("Output", f"{number(found.recent_tok_s)} tok/s", f"last {live.RECENT_S:g} s"),
        ]
    )
    if found.note:
        st.caption(escape(found.note))
    if found.steps is not None:
        figure = figures.around(found.steps, len(found.steps) - 1, _STRIP_STEPS)
        figure.update_xaxes(title_text="")
        ui.chart(figure, f"live-{info.id}", "The engine's newest steps")
        st.caption("Seconds from the start of the run. The engine's trace comes twice a second.")


def _sweep(found: live.SweepProgress) -> None:
    st.subheader(f"Sweep over {escape(found.factor)}")
    left = f", at most {live.clock(found.eta_s)} left" if found.eta_s is not None else ""
    now = f" · now: {escape(found.current)}" if found.current else ""
    st.caption(f"{escape(found.id)} · last line of the ledger {live.clock(found.quiet_s)} ago{now}")
    st.progress(
        min(1.0, found.done / found.planned) if found.planned else 0.0,
        text=f"{found.done} of {found.planned} runs{left}",
    )
    if not found.cells:
        st.caption("No run of it has ended yet.")
        return
    config: dict[str, Any] = {}
    for metric in _METRICS:
        share = metric_name(metric).unit == "share"
        label = metric_name(metric).label if share else metric_name(metric).axis
        config[metric] = st.column_config.NumberColumn(label, format="percent" if share else "%.1f")
    rows = pd.DataFrame([_cell(cell) for cell in reversed(found.cells)])
    st.dataframe(
        rows, hide_index=True, column_config=config, placeholder="–", alt="Runs of the sweep that have ended"
    )


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "block": str(cell.block) if cell.phase == "sweep" else f"{cell.phase} {cell.block}",
        "level": level_key(cell.level) + (" (baseline)" if cell.baseline_copy is not None else ""),
        "state": cell.state.lower(),
        **{metric: cell.metrics.get(metric) for metric in _METRICS},
        "seconds": cell.seconds,
        "note": cell.reason or None,
    }


def _sweeps(running: list[RunInfo]) -> list[live.SweepProgress]:
    ids = {info.sweep_id for info in running if info.sweep_id}
    found = []
    for folder in store.open_sweeps():
        progress = live.sweep_progress(folder, time.time())
        if progress is not None and (progress.id in ids or progress.quiet_s < _FRESH_S):
            found.append(progress)
    return found


def _searches() -> bool:
    """Shows the capacity searches that go on; False when there are none."""
    found = False
    for study in store.capacities():
        if study.result is None or study.result.status != "running" or not _fresh(study.path):
            continue
        found = True
        spec = study.result.spec
        st.subheader(f"Capacity search on {escape(spec.workload)}")
        st.caption(escape(study.id))
        done = len(study.result.runs)
        st.progress(min(1.0, done / spec.max_runs), text=f"{done} runs, at most {spec.max_runs}")
        st.page_link(
            ui.CAPACITY_VIEW,
            label="Look at its probes",
            query_params={"capacity": study.id},
            icon=":material/speed:",
        )

    return found


def _fresh(folder: Path) -> bool:
    """Was a file of it written lately? A process that was killed leaves "running" behind."""
    newest = max((stamp for _, stamp, _ in store.signature(folder)), default=0)
    return time.time() - newest / 1e9 < _FRESH_S


@st.fragment(run_every=EVERY_S)
def _now() -> None:
    running = _running()
    sweeps = _sweeps(running)
    for sweep in sweeps:
        _sweep(sweep)
    searches = _searches()
    for info in running:
        _run(info)
    if not running and not sweeps and not searches:
        _nothing()
    st.caption(f"Looked at {time.strftime('%H:%M:%S')}, again every {EVERY_S:g} s.")


def _nothing() -> None:
    ui.nothing(
        "Nothing is running in this store. Start `workbench bench` or `workbench sweep` in a terminal, with "
        "the same run store: it appears here by itself."
    )
    latest = store.readable_runs()[:3]
    if latest:
        st.caption("The latest runs:")
    for info in latest:
        words = f"{info.name or info.workload or info.id}, {info.status}"
        st.page_link(
            ui.RUN_VIEW, label=escape(words), query_params={"run": info.id}, icon=":material/monitoring:"
        )


st.title("Live")
_now()
