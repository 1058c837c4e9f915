"""Requests over time (Gantt) above the engine's steps, all on one time axis."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import strips, style
from reports.lifecycle import DECODE, GAP, PREEMPTED, PREFILL, QUEUE, STREAMING, TO_FIRST, Span

PHASE_COLOURS: dict[str, str] = {
    QUEUE: style.GREY,
    TO_FIRST: style.ORANGE,
    PREFILL: style.ORANGE,
    GAP: style.PURPLE,
    DECODE: style.BLUE,
    STREAMING: style.BLUE,
    PREEMPTED: style.VERMILLION,
}
MAX_ROWS = 150
"""Requests in one Gantt: more would be thinner than a pixel row can show."""
_GAP = 58
_STRIP = 104
_TOP = 84


def timeline(
    spans: Sequence[Span],
    requests: pd.DataFrame | None,
    steps: pd.DataFrame | None,
    window: tuple[float, float] | None = None,
    source: str = "engine events",
    alive: int | None = None,
) -> go.Figure:
    """One row per request that lives in ``window`` (seconds from the start of the run), in the order they
    were sent.

    Below, with a step trace: tokens per step, phases of the step, queue, KV blocks, and why admission
    stopped. ``source`` names where the spans come from: engine events or client stamps; ``alive`` is how
    many requests live in the window, where ``spans`` are those of the first ones only.
    """
    inside = [s for s in spans if window is None or (s.end_s >= window[0] and s.start_s <= window[1])]
    if not inside:
        return style.empty(
            "No request lives in this window." if spans else "This run has no request stamps to draw."
        )
    rows = _rows(inside)
    shown = rows[:MAX_ROWS]
    panels = strips.panels(steps, window)
    gantt_height = max(120, min(620, 16 * len(shown) + 20))
    heights = [gantt_height, *(panel.height or _STRIP for panel in panels)]
    total = sum(heights) + _GAP * (len(heights) - 1)
    figure = make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes=True,
        row_heights=[h / sum(heights) for h in heights],
        vertical_spacing=_GAP / total if len(heights) > 1 else 0,
    )
    _gantt(figure, inside, shown, requests, window)
    for index, panel in enumerate(panels, start=2):
        panel.draw(figure, index)
    legends = _legends(figure, len(heights), total)
    count = max(len(rows), alive or 0)
    note = f", first of {count:,}: narrow the window to see the rest" if count > len(shown) else ""
    figure.update_xaxes(showticklabels=False)
    figure.update_xaxes(
        showticklabels=True, title_text="seconds from the first measured request", row=len(heights)
    )
    if window is not None:
        figure.update_xaxes(range=list(window))
    figure.update_yaxes(title_text="request", row=1, col=1)
    titles = [f"Requests (n = {len(shown)}{note}; {source})", *(panel.title for panel in panels)]
    _titles(figure, titles, total)
    return style.finish(
        figure,
        total + _TOP + 56,
        barmode="overlay",
        bargap=0.25,
        margin={"l": 108, "r": 20, "t": _TOP, "b": 56},
        **legends,
    )


def _rows(spans: Sequence[Span]) -> list[str]:
    first: dict[str, float] = {}
    for span in spans:
        first[span.request_id] = min(first.get(span.request_id, span.start_s), span.start_s)
    return sorted(first, key=lambda request: (first[request], request))


def _gantt(
    figure: go.Figure,
    spans: Sequence[Span],
    shown: Sequence[str],
    requests: pd.DataFrame | None,
    window: tuple[float, float] | None,
) -> None:
    place = {request: i for i, request in enumerate(shown)}
    for phase, colour in PHASE_COLOURS.items():
        part = [s for s in spans if s.phase == phase and s.request_id in place]
        part = [part[i] for i in style.thin(len(part), 6_000)]
        if not part:
            continue
        figure.add_trace(
            go.Bar(
                orientation="h",
                base=[s.start_s for s in part],
                x=[s.end_s - s.start_s for s in part],
                y=[place[s.request_id] for s in part],
                width=0.34 if phase in (QUEUE, GAP) else 0.78,
                marker={"color": colour, "line": {"width": 0}},
                name=f"{phase} (n = {len(part)})",
                customdata=[[style.plain(s.request_id, 40), _span_text(s)] for s in part],
                hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            ),
            row=1,
            col=1,
        )
    if requests is not None:
        _client_marks(figure, requests, place, window)
    labels = [style.plain(request, 18) for request in shown]
    readable = len(shown) <= 40
    figure.update_yaxes(
        tickvals=list(range(len(shown))) if readable else None,
        ticktext=labels if readable else None,
        showticklabels=readable,
        range=[len(shown) - 0.4, -0.6],
        showgrid=False,
        tickfont={"size": 10.5},
        row=1,
        col=1,
    )


def _span_text(span: Span) -> str:
    text = f"{span.phase}: {1000 * (span.end_s - span.start_s):.1f} ms from {span.start_s:.3f} s"
    if span.tokens is not None:
        text += f", {span.tokens} tokens"
    return text + (f", step {span.step_id}" if span.step_id is not None else "")


def _client_marks(
    figure: go.Figure, requests: pd.DataFrame, place: dict[str, int], window: tuple[float, float] | None
) -> None:
    mine = requests[requests["request_id"].isin(list(place))]
    if window is not None:
        mine = mine[(mine["close_s"] >= window[0]) & (mine["sent_s"] <= window[1])]
    marks = (
        ("first token at the client", mine.dropna(subset=["first_s"]), "first_s", "line-ns", style.GREEN),
        (
            "failed",
            mine[mine["status"] == "failed"].dropna(subset=["close_s"]),
            "close_s",
            "x",
            style.VERMILLION,
        ),
    )
    for name, rows, column, symbol, colour in marks:
        if rows.empty:
            continue
        figure.add_trace(
            go.Scatter(
                x=rows[column],
                y=[place[r] for r in rows["request_id"]],
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 11,
                    "color": colour,
                    "line": {"width": 2.5, "color": colour},
                },
                name=f"{name} (n = {len(rows)})",
                customdata=[style.plain(r, 40) for r in rows["request_id"]],
                hovertemplate=f"%{{customdata}}<br>{name}: %{{x:.3f}} s<extra></extra>",
            ),
            row=1,
            col=1,
        )


def _legends(figure: go.Figure, count: int, total: int) -> dict[str, object]:
    """One legend per strip: that of the requests above its title, the others beside theirs."""
    out: dict[str, object] = {}
    for index in range(count):
        key = "legend" if index == 0 else f"legend{index + 1}"
        top = figure.layout["yaxis" if index == 0 else f"yaxis{index + 1}"].domain[1]
        out[key] = {
            "orientation": "h",
            "x": 0 if index == 0 else 1,
            "xanchor": "left" if index == 0 else "right",
            "y": top + (26 if index == 0 else 4) / total,
            "yanchor": "bottom",
            "font": {"size": 11.5},
        }
    return out


def _titles(figure: go.Figure, titles: Sequence[str], total: int) -> None:
    for index, title in enumerate(titles):
        top = figure.layout["yaxis" if index == 0 else f"yaxis{index + 1}"].domain[1]
        figure.add_annotation(
            text=f"<b>{style.plain(title, 120)}</b>",
            x=0,
            xanchor="left",
            xref="paper",
            y=top,
            yanchor="bottom",
            yref="paper",
            yshift=5,
            font={"size": 12.5},
        )
