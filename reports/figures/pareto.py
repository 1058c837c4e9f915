"""Latency against throughput, by level."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from experiments.models import SweepResult
from reports.figures import style
from reports.metric_names import metric_name
from reports.pairing import level_key, ordered_levels, run_order, valid


def pareto(sweep: SweepResult, latency: str = "ttft_p50", throughput: str = "output_tok_s") -> go.Figure:
    """Latency against throughput: faint dots are runs, labelled marks medians of levels, the line joins the
    frontier.
    """
    found = [
        level
        for level in ordered_levels(sweep)
        if valid(level.medians.get(latency)) and valid(level.medians.get(throughput))
    ]
    if not found:
        return style.empty(f"No level has both {latency} and {throughput}.")
    missing = len(sweep.levels) - len(found)
    points = [(float(v.medians[latency] or 0), float(v.medians[throughput] or 0), v) for v in found]
    front = sorted(
        p for p in ((x, y) for x, y, _ in points) if _undominated(p, [(x, y) for x, y, _ in points])
    )
    runs = [
        c.metrics
        for c in run_order(sweep)
        if valid(c.metrics.get(latency)) and valid(c.metrics.get(throughput))
    ]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[r[latency] for r in runs],
            y=[r[throughput] for r in runs],
            mode="markers",
            marker={"size": 6, "color": style.tint(style.GREY, 0.55)},
            name=f"run (n = {len(runs)})",
            hovertemplate="%{x:.4g} ms, %{y:.4g} tok/s<extra></extra>",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in front],
            y=[y for _, y in front],
            mode="lines",
            line={"color": style.GREEN, "width": 2, "dash": "dot"},
            name=f"frontier (n = {len(front)})",
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[x for x, _, _ in points],
            y=[y for _, y, _ in points],
            text=[style.plain(level_key(level.value)) for _, _, level in points],
            mode="markers+text",
            textposition=_label_sides([x for x, _, _ in points]),
            marker={
                "size": 12,
                "color": [
                    style.VERMILLION if v.value == sweep.baseline else style.BLUE for _, _, v in points
                ],
                "symbol": ["diamond" if v.value == sweep.baseline else "circle" for _, _, v in points],
            },
            name=f"median of a level, n = {len(points)}"
            + (f" ({missing} without data left out)" if missing else ""),
            hovertemplate="%{text}: %{x:.4g} ms, %{y:.4g} tok/s<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=f"{metric_name(latency).axis}  ← better", rangemode="tozero")
    figure.update_yaxes(title_text=f"{metric_name(throughput).axis}  better →")
    return style.finish(figure, 400, legend={"y": 1.04})


def _undominated(point: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    return not any(x <= point[0] and y >= point[1] and (x, y) != point for x, y in others)


def _label_sides(xs: Sequence[float]) -> list[str]:
    """Labels above and below in turn, from left to right, so that close neighbours do not write over each
    other.
    """
    order = sorted(range(len(xs)), key=lambda i: xs[i])
    sides = [""] * len(xs)
    for place, index in enumerate(order):
        sides[index] = "top center" if place % 2 == 0 else "bottom center"
    return sides
