"""Engine X-ray: one step at a time. Who got how many tokens, who waited, and why nobody else came in."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from reports.config_diff import flatten
from reports.dashboard import store, ui
from reports.facts import Tile
from reports.figures import xray as figures
from reports.figures.strips import STOP_TEXT
from reports.markdown import escape
from reports.metric_names import number
from reports.xray import StepView, step_view
from workbench.errors import RunCorruptError

_BUDGET = "max_num_batched_tokens"


def _limit(page: store.RunPage) -> int | None:
    for key, value in flatten(page.manifest.target.echo or {}).items():
        if key.rpartition(".")[2] == _BUDGET and value.isdigit():
            return int(value)
    return None


def _jump(steps: pd.DataFrame, here: int) -> None:
    """Buttons to the next step of interest; each moves the slider."""
    later = steps.iloc[here + 1 :]
    targets = {
        "Next prefill": later.index[later["prefill_tokens"].fillna(0) > 0],
        "Next blocked admission": later.index[~later["admission_stop"].isin(["queue_empty"])],
        "Next preemption": later.index[later["num_preempted"].fillna(0) > 0],
    }
    with st.container(horizontal=True):
        st.button("Previous", disabled=here == 0, on_click=_go, args=(steps, here - 1))
        st.button("Next", disabled=here + 1 >= len(steps), on_click=_go, args=(steps, here + 1))
        for label, found in targets.items():
            place = int(found[0]) if len(found) else here
            st.button(label, disabled=not len(found), on_click=_go, args=(steps, place))


def _go(steps: pd.DataFrame, index: int) -> None:
    st.session_state["step"] = int(steps["step_id"].iloc[index])


def _slider(steps: pd.DataFrame) -> int:
    """Row of the chosen step; the slider is kept in step with ``?step=ID``."""
    ids = [int(i) for i in steps["step_id"]]
    if len(ids) == 1:
        return 0
    low, high = min(ids), max(ids)
    asked = st.query_params.get("step", "")
    if asked.isdigit() and int(asked) != st.session_state.get("last_step"):
        st.session_state["step"] = int(asked)
    st.session_state["step"] = min(max(st.session_state.get("step", low), low), high)
    chosen = st.slider("Step", low, high, key="step")
    st.session_state["last_step"] = chosen
    st.query_params["step"] = str(chosen)
    place = {step: row for row, step in enumerate(ids)}
    return place.get(chosen, min(range(len(ids)), key=lambda row: abs(ids[row] - chosen)))


def _summary(view: StepView) -> None:
    step = view.step
    found = (
        ("Step time", f"{number(step['step_ms'])} ms"),
        ("Tokens", number(step["prefill_tokens"] + step["decode_tokens"])),
        ("Running", number(step["num_running"])),
        ("Waiting", number(step["num_waiting"])),
        ("Preempted", number(step["num_preempted"])),
    )
    ui.tiles([Tile(label, value) for label, value in found])
    stop = str(step["admission_stop"])
    reason = STOP_TEXT.get(stop, "a reason this version does not know")
    st.info(f"Admission stopped: **{escape(stop)}** — {escape(reason)}.", icon=":material/door_front:")
    if view.note:
        st.warning(view.note)


def _batch(view: StepView, limit: int | None) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("Who got the tokens")
        ui.chart(figures.budget(view, limit), "budget", "Tokens of this step by request")
        rows = [{"request": s.request_id, "phase": s.phase, "tokens": s.tokens} for s in view.shares]
        if rows:
            st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Shares of this step")
    with right:
        st.subheader("KV blocks and the queue")
        ui.chart(figures.kv_pool(view), "kv", "KV blocks after this step")
        queue = [
            {
                "request": w.request_id,
                "waited (ms)": w.waited_ms,
                "why": "preempted" if w.preempted else "new",
            }
            for w in view.waiting
        ]
        if queue:
            config = {"waited (ms)": st.column_config.NumberColumn(format="%.1f")}
            st.dataframe(
                pd.DataFrame(queue),
                hide_index=True,
                column_config=config,
                alt="Queue at this step",
            )
        else:
            st.caption("Nobody waited when this step was planned.")


def _page(run_id: str) -> None:
    try:
        page = store.run_page(run_id)
    except RunCorruptError as error:
        st.error(f"This run can't be read: {escape(error)}")
        return
    for problem in page.tables.problems:
        st.warning(escape(problem))
    steps = page.tables.steps
    if steps is None or steps.empty:
        ui.nothing("This run has no step trace. Runs of the builtin engine have one.")
        return
    here = _slider(steps)
    _jump(steps, here)
    view = step_view(steps, page.spans, here)
    _summary(view)
    _batch(view, _limit(page))
    st.subheader("The steps around it")
    ui.chart(figures.around(steps, here), "around", "Steps around the chosen one")


st.title("Engine X-ray")
known = {info.id: info for info in store.readable_runs()}
if not known:
    ui.nothing("This store has no readable run yet. Make one with `workbench bench`.")
else:
    labels = store.labels(known)
    chosen = ui.choose("Run", "run", list(known), labels)
    if chosen:
        _page(chosen)
