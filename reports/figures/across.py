"""Boundary of a gain: the winner of a sweep against its baseline along another setting."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from experiments.models import SweepResult
from reports.figures import ratio_axis, style
from reports.metric_names import change, metric_name
from reports.pairing import level_key, valid


def along_axis(sweep: SweepResult) -> go.Figure:
    """Change of the primary metric per value of ``--across``, with its 95 % interval and verdict."""
    metric = sweep.primary_metric
    points = [
        (p, p.ratio[metric]) for p in sweep.across if metric in p.ratio and valid(p.ratio[metric].point)
    ]
    if not points:
        if sweep.across:
            return style.empty(f"No value of {sweep.across_axis} has both sides of {metric}.")
        return style.empty("The gain was not followed along another setting (workbench sweep --across).")
    name = metric_name(metric)
    names = [style.plain(level_key(p.value), 24) for p, _ in points]
    figure = go.Figure()
    line = {"color": style.GREY, "width": 1.5}
    figure.add_hline(y=1, line=line)
    for edge in (1 / (1 + sweep.delta), 1 + sweep.delta):
        figure.add_hline(y=edge, line={"color": style.GREY, "width": 1, "dash": "dash"})
    for verdict in dict.fromkeys(p.verdict for p, _ in points):
        part = [(n, r) for n, (p, r) in zip(names, points, strict=True) if p.verdict == verdict]
        colour = style.VERDICT_COLOURS[verdict]
        figure.add_trace(
            go.Scatter(
                x=[n for n, _ in part],
                y=[r.point for _, r in part],
                mode="markers",
                marker={
                    "size": 12,
                    "color": colour,
                    "symbol": style.VERDICT_SYMBOLS[verdict],
                    "line": {"width": 2, "color": colour},
                },
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [(r.high or r.point or 0) - (r.point or 0) for _, r in part],
                    "arrayminus": [(r.point or 0) - (r.low or r.point or 0) for _, r in part],
                    "color": colour,
                    "thickness": 2.5,
                    "width": 6,
                },
                name=f"{verdict.lower()} (n = {len(part)} values)",
                customdata=[[change(r.point), change(r.low), change(r.high), r.n_blocks] for _, r in part],
                hovertemplate="%{x}: %{customdata[0]} [%{customdata[1]}, %{customdata[2]}], "
                "n = %{customdata[3]} blocks<extra></extra>",
            )
        )
    ratios = [r for _, r in points]
    low, high = ratio_axis.limits(
        [r.point for r in ratios], [v for r in ratios for v in (r.low, r.high)], sweep.delta
    )
    values, labels = ratio_axis.ticks(low, high)
    hint = {True: "lower is better", False: "higher is better", None: ""}[name.lower_is_better]
    figure.update_yaxes(
        title_text=f"{style.plain(name.label)} change (%), {hint}",
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=values,
        ticktext=labels,
    )
    figure.update_xaxes(
        title_text=style.plain(sweep.across_axis), type="category", categoryorder="array", categoryarray=names
    )
    return style.finish(figure, 360)
