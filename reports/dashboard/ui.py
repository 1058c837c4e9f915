"""Pieces that the pages share. Text from a bundle reaches the browser escaped, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go
import streamlit as st

from reports.facts import Tile
from reports.figures import static, style
from reports.markdown import escape
from reports.render import environment

RUN_VIEW, SWEEP_VIEW, COMPARE_VIEW, XRAY_VIEW, CAPACITY_VIEW, GATE_VIEW, LIVE_VIEW = (
    f"views/{name}.py" for name in ("run", "sweep", "compare", "xray", "capacity", "gate", "live")
)
_CHART = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}


def dark() -> bool:
    """Does the reader's browser show the dark theme?"""
    return st.context.theme.type == "dark"


def chart(figure: go.Figure, key: str, title: str) -> None:
    """Draw a figure in the reader's theme; ``title`` also describes it to a screen reader."""
    shown = style.themed(figure, style.DARK if dark() else style.LIGHT)
    st.plotly_chart(shown, width="stretch", theme=None, key=key, config=_CHART, alt=title)


def first_chart(figure: go.Figure, key: str, title: str) -> None:
    """As ``chart``, for the first one of a page: a still picture stands in its place until the browser has
    loaded and run plotly, which takes longer than everything else on the page.
    """
    if style.is_empty(figure):
        chart(figure, key, title)
        return
    theme = style.DARK if dark() else style.LIGHT
    with st.container(key=f"first_{key}"):
        st.html(
            environment()
            .get_template("still.html.j2")
            .render(
                key=f"st-key-first_{key}",
                source=static.image(figure, theme),
                title=title,
                height=figure.layout.height,
            )
        )
        chart(figure, key, title)


def fragment(kind: str, **context: Any) -> None:
    """An HTML table or text from ``fragment.html.j2``, which escapes everything it is given."""
    html = environment().get_template("fragment.html.j2").render(kind=kind, dark=dark(), **context)
    st.html(html)


def tiles(found: Sequence[Tile]) -> None:
    """Key figures side by side."""
    fragment("tiles", tiles=found)


def validity(valid: bool | None, reasons: Iterable[str], what: str) -> None:
    """A box that says whether to trust the numbers, and why not."""
    if valid:
        st.success(f"This {what} is valid: none of its checks failed.", icon=":material/check_circle:")
    elif valid is None:
        st.warning(f"No validity was stored with this {what}.", icon=":material/help:")
    else:
        listed = "".join(f"\n- {escape(reason)}" for reason in reasons) or "\n- no reason was stored"
        st.error(f"This {what} is not valid; do not act on its numbers.{listed}", icon=":material/cancel:")


def nothing(text: str) -> None:
    """An empty page says what to do."""
    st.info(text, icon=":material/inbox:")


def choose(label: str, key: str, ids: Sequence[str], names: dict[str, str]) -> str | None:
    """A select box kept in step with ``?key=ID``; an unknown id is named, and nothing is opened for it.

    Without an id in the address the last one chosen in this session is kept, else the first is taken.
    """
    asked = st.query_params.get(key)
    widget, last = f"choose_{key}", f"last_{key}"
    if asked is not None and asked not in ids:
        st.warning(f"There is no {escape(key)} called {escape(asked)} in this store, or it can't be read.")
        st.session_state[widget] = None
        st.query_params.pop(key, None)
    elif asked is not None and asked != st.session_state.get(last):
        st.session_state[widget] = asked
    elif st.session_state.get(widget, "") not in (*ids, None):
        st.session_state[widget] = st.session_state.get(last) if st.session_state.get(last) in ids else ids[0]
    chosen = st.selectbox(
        label, ids, key=widget, format_func=lambda i: names.get(i, i), placeholder=f"Choose a {key}"
    )
    if chosen is not None:
        st.session_state[last] = chosen
        st.query_params[key] = chosen
    return chosen


def tabs(names: Sequence[str], draw: Sequence[Callable[[], None]]) -> None:
    """Tabs kept in step with ``?tab=NAME``; only the open one is computed."""
    asked = st.query_params.get("tab")
    key = "tab_" + "_".join(names)
    if asked in names and key not in st.session_state:
        st.session_state[key] = asked
    for name, tab, content in zip(names, st.tabs(names, key=key, on_change="rerun"), draw, strict=True):
        if tab.open:
            st.query_params["tab"] = name
            with tab:
                content()


def one_of(label: str, key: str, options: Sequence[str], start: int = 0) -> str:
    """A switch between ``options``; always one of them is on."""
    widget = f"one_of_{key}"
    if widget not in st.session_state:
        st.session_state[widget] = options[start]
    return str(st.segmented_control(label, options, key=widget, required=True, label_visibility="collapsed"))


def steps(key: str, low: int, high: int) -> int:
    """A slider over step ids, kept in step with ``?key=ID``; what lies outside is moved to the next end."""
    if low >= high:
        return low
    widget, last = f"at_{key}", f"last_{key}"
    asked = st.query_params.get(key, "")
    if asked.isdecimal() and len(asked) < 16 and int(asked) != st.session_state.get(last):
        st.session_state[widget] = int(asked)
    st.session_state[widget] = min(max(st.session_state.get(widget, low), low), high)
    chosen = int(st.slider("Step", low, high, key=widget))
    st.session_state[last] = chosen
    st.query_params[key] = str(chosen)
    return chosen


def jumps(key: str, ids: Sequence[int], place: int, targets: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Buttons that move the slider of ``steps`` from ``ids[place]``: one back, one on, and to the next step
    of each of ``targets``.
    """
    around = [
        ("Previous", ids[place - 1] if place else None),
        ("Next", ids[place + 1] if place + 1 < len(ids) else None),
    ]
    around += [(label, next((i for i in found if i > ids[place]), None)) for label, found in targets]
    with st.container(horizontal=True):
        for label, step in around:
            st.button(label, disabled=step is None, on_click=_move, args=(key, step))


def _move(key: str, step: int) -> None:
    st.session_state[f"at_{key}"] = step


def link(page: str, **query: str) -> str:
    """Address of a page of this dashboard with its query."""
    text = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return f"/{page}?{text}"
