"""Figures of one engine step: its token budget, the KV pool, and the steps around it."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import strips, style
from reports.lifecycle import PREFILL
from reports.xray import StepView


def budget(view: StepView, limit: int | None) -> go.Figure:
    """The step's tokens as one bar, a piece per request; the rest of the budget (``limit`` tokens) stays
    open.
    """
    if not view.shares:
        return style.empty("This step computed no tokens.", 150)
    used = sum(share.tokens for share in view.shares)
    apart = max(used, limit or 0) / 100  # a white rim would hide a piece that is only a pixel wide
    figure = go.Figure()
    for phase, colour in ((PREFILL, style.ORANGE), ("decode", style.BLUE)):
        part = [s for s in view.shares if s.phase == phase]
        for number, share in enumerate(part):
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    x=[share.tokens],
                    y=["tokens"],
                    marker={
                        "color": colour,
                        "line": {"color": "#FFFFFF", "width": 1 if share.tokens >= apart else 0},
                    },
                    name=f"{phase} (n = {len(part)}, {sum(s.tokens for s in part)} tokens)",
                    legendgroup=phase,
                    showlegend=number == 0,
                    hovertemplate=f"{style.plain(share.request_id, 40)}: {share.tokens}<extra></extra>",
                )
            )
    if limit is not None and limit > used:
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[limit - used],
                y=["tokens"],
                marker={
                    "color": style.tint(style.GREY, 0.18),
                    "line": {"color": style.GREY, "width": 1},
                    "pattern": {"shape": "/", "fgcolor": style.tint(style.GREY, 0.5)},
                },
                name=f"unused of a budget of {limit} tokens",
                hovertemplate=f"{limit - used} tokens unused<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="tokens in this step")
    figure.update_yaxes(showticklabels=False)
    return style.finish(figure, 190, barmode="stack", margin={"l": 20, "r": 20, "t": 48, "b": 52})


def kv_pool(view: StepView) -> go.Figure:
    """The KV pool after the step as one bar: used, free but cached, free."""
    parts = (
        ("used", view.step["kv_used"], style.BLUE),
        ("free, but cached", view.step["kv_cached"], style.SKY),
        ("free", view.step["kv_free"], style.tint_solid(style.GREY)),
    )
    known = [(name, int(value), colour) for name, value, colour in parts if not pd.isna(value)]
    if not known:
        return style.empty("This step trace has no KV counters.", 150)
    figure = go.Figure()
    for name, value, colour in known:
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[value],
                y=["KV"],
                marker={"color": colour},
                name=f"{name} (n = {value})",
                hovertemplate=f"{name}: {value} blocks<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="KV blocks after this step", range=[0, sum(v for _, v, _ in known)])
    figure.update_yaxes(showticklabels=False)
    return style.finish(figure, 190, barmode="stack", margin={"l": 20, "r": 20, "t": 48, "b": 52})


def around(steps: pd.DataFrame, index: int, width: int = 60) -> go.Figure:
    """Strips of the ``width`` steps on either side of row ``index``, which a line marks."""
    near = steps.iloc[max(0, index - width) : index + width + 1]
    chosen = steps.iloc[index]
    panels = strips.panels(near, None)
    if not panels:
        return style.empty("No steps to show.")
    heights = [panel.height or 96 for panel in panels]
    total = sum(heights) + 52 * (len(heights) - 1)
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        row_heights=[h / sum(heights) for h in heights],
        vertical_spacing=52 / total,
    )
    legends = {}
    for row, panel in enumerate(panels, start=1):
        panel.draw(figure, row)
        top = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].domain[1]
        place = {"orientation": "h", "x": 1, "xanchor": "right", "y": top + 4 / total, "yanchor": "bottom"}
        legends["legend" if row == 1 else f"legend{row}"] = {**place, "font": {"size": 11.5}}
        title = {"x": 0, "xanchor": "left", "xref": "paper", "y": top, "yanchor": "bottom", "yref": "paper"}
        figure.add_annotation(text=f"<b>{panel.title}</b>", yshift=4, font={"size": 12.5}, **title)
        figure.add_vrect(
            x0=float(chosen["start_s"]),
            x1=float(chosen["end_s"]),
            fillcolor=style.tint(style.GREEN, 0.35),
            line={"color": style.GREEN, "width": 1.5},
            row=row,
            col=1,
        )
    figure.for_each_trace(lambda t: t.update(legend="legend") if t.legend == "legend1" else None)
    figure.update_xaxes(title_text="seconds from the first measured request", row=len(panels))
    return style.finish(figure, total + 100, margin={"l": 108, "r": 20, "t": 44, "b": 56}, **legends)
