"""Engine X-ray: one step at a time. Who got how many tokens, who waited, and why nobody else came in."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from reports.config_diff import flatten
from reports.dashboard import lesson_view, store, ui
from reports.facts import Tile
from reports.figures import block_pool
from reports.figures import xray as figures
from reports.figures.strips import STOP_TEXT
from reports.held_blocks import held_blocks
from reports.markdown import escape
from reports.metric_names import number
from reports.xray import StepView, step_view
from workbench.errors import RunCorruptError

_BUDGET, _BLOCK_SIZE = "max_num_batched_tokens", "block_size"
_SOURCES = ("A run", "The lesson")


def _setting(page: store.RunPage, name: str) -> int | None:
    """A whole number that the target echoed under ``name``."""
    for key, value in flatten(page.manifest.target.echo or {}).items():
        if key.rpartition(".")[2] == name and value.isdigit() and int(value) > 0:
            return int(value)
    return None


def _targets(steps: pd.DataFrame) -> list[tuple[str, list[int]]]:
    """Steps of interest: buttons lead to the next one of each kind."""
    kinds = {
        "Next prefill": steps["prefill_tokens"].fillna(0) > 0,
        "Next blocked admission": ~steps["admission_stop"].isin(["queue_empty"]),
        "Next preemption": steps["num_preempted"].fillna(0) > 0,
    }
    return [(label, steps["step_id"][mask].astype(int).tolist()) for label, mask in kinds.items()]


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
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader("Who got the tokens")
        ui.chart(figures.budget(view, limit), "budget", "Tokens of this step by request")
        rows = [{"request": s.request_id, "phase": s.phase, "tokens": s.tokens} for s in view.shares]
        if rows:
            st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Shares of this step")
    with right:
        st.subheader("Who waited, and why")
        stop = STOP_TEXT.get(str(view.step["admission_stop"]), "a reason this version does not know")
        queue = [
            {
                "request": w.request_id,
                "waited (ms)": w.waited_ms,
                "state": "preempted" if w.preempted else "new",
                "why": stop if place == 0 else "behind the head of the queue",
            }
            for place, w in enumerate(sorted(view.waiting, key=lambda w: not w.preempted))
        ]
        if queue:
            config = {"waited (ms)": st.column_config.NumberColumn(format="%.1f")}
            st.dataframe(pd.DataFrame(queue), hide_index=True, column_config=config, alt="Queue at this step")
        else:
            st.caption("Nobody waited when this step was planned.")


def _pool(page: store.RunPage, view: StepView, here: int) -> None:
    st.subheader("KV blocks while the step ran")
    steps, size = page.tables.steps, _setting(page, _BLOCK_SIZE)
    events = page.tables.lives.events_at(float(view.step["start_s"]))
    counters = [view.step[key] for key in ("kv_used", "kv_cached", "kv_free")]
    if steps is None or events is None or size is None or any(pd.isna(c) for c in counters):
        ui.chart(figures.kv_pool(view), "kv", "KV blocks of this step")
        st.caption(
            "Counters only: the trace has no request events, or the run no echo of its block_size, so who "
            "held which block can't be told."
        )
        return
    found = held_blocks(events, steps, here, size)
    used, cached, free = (int(c) for c in counters)
    held = found.held if not found.shared else _fitted(found.held, used)
    figure = block_pool.by_request(held, found.unexplained, cached, free)
    ui.chart(figure, "kv", "KV blocks of this step by request")
    note = (
        "A run's trace has counters and chunks, not block tables: cells are grouped by request, in no order "
        f"of addresses. Blocks per request follow from its computed tokens (block_size {size})."
    )
    if found.shared:
        note += (
            f" The block tables hold {found.total} blocks, {used} are in use: {found.shared} of them are "
            "shared prefixes; they are drawn once."
        )
    st.caption(note + " The lesson shows real block tables.")


def _fitted(held: list[block_pool.Held], used: int) -> list[block_pool.Held]:
    """Shared blocks are drawn with the requests that come first: the cells add up to the blocks in use."""
    fitted, left = [], used
    for one in held:
        fitted.append(block_pool.Held(one.request, min(one.blocks, left)))
        left -= fitted[-1].blocks
    return fitted


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
        ui.nothing(
            "This run has no step trace. Runs of the builtin engine have one. The lesson needs none: "
            "choose it above."
        )
        return
    ids = [int(i) for i in steps["step_id"]]
    chosen = ui.steps("step", min(ids), max(ids))
    here = min(range(len(ids)), key=lambda row: abs(ids[row] - chosen))
    ui.jumps("step", ids, here, _targets(steps))
    view = step_view(steps, page.tables.lives.at(float(steps["start_s"].iloc[here])), here)
    _summary(view)
    _batch(view, _setting(page, _BUDGET))
    _pool(page, view, here)
    st.subheader("The steps around it")
    ui.chart(figures.around(steps, here), "around", "Steps around the chosen one")


st.title("Engine X-ray")
known = {info.id: info for info in store.readable_runs()}
if not known:
    ui.nothing("This store has no readable run yet. Make one with `workbench bench`. Here is the lesson.")
    lesson_view.show()
elif ui.one_of("Show", "xray", _SOURCES, start=1 if "lesson" in st.query_params else 0) == _SOURCES[1]:
    st.query_params.pop("run", None)
    st.query_params.pop("step", None)
    lesson_view.show()
else:
    st.query_params.pop("lesson", None)
    chosen = ui.choose("Run", "run", list(known), store.labels(known))
    if chosen:
        _page(chosen)
