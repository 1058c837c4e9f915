"""Capacity search: share of requests within their objectives against the rate, and where it stops."""

from __future__ import annotations

import plotly.graph_objects as go

from experiments.capacity.models import CapacityResult
from reports.figures import style

_LOOKS = {
    "PASSED": ("met the target", style.GREEN, "triangle-up"),
    "MISSED": ("missed it", style.VERMILLION, "triangle-down"),
    "VOID": ("void: not counted", style.GREY, "x-thin-open"),
    "FAILED": ("failed: no numbers", style.GREY, "x-open"),
}

_WIDE = 8.0
"""Rates that lie further apart than this factor are drawn on a log axis."""


def goodput_against_rate(result: CapacityResult) -> go.Figure:
    """A mark per run that has a ratio; the band is the capacity's 95 % credible interval."""
    shown = [run for run in result.runs if run.ratio is not None and run.rate > 0]
    if not shown:
        return style.empty("No run of this search has a goodput ratio yet.")
    figure = go.Figure()
    if result.low is not None and result.high is not None:
        figure.add_vrect(
            x0=result.low, x1=result.high, fillcolor=style.tint(style.BLUE, 0.14), line={"width": 0}
        )
    if result.rate is not None:
        figure.add_vline(x=result.rate, line={"color": style.BLUE, "width": 2})
    figure.add_hline(y=result.spec.target_ratio, line={"color": style.GREY, "width": 1.5, "dash": "dash"})
    for state, (words, colour, symbol) in _LOOKS.items():
        part = [run for run in shown if run.state == state]
        if not part:
            continue
        figure.add_trace(
            go.Scatter(
                x=[run.rate for run in part],
                y=[run.ratio for run in part],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 12, "line": {"width": 2, "color": colour}},
                name=f"{words} (n = {len(part)})",
                customdata=[
                    [
                        _count(run.good),
                        _count(run.offered),
                        "" if run.stable is not False else ", queue grows",
                    ]
                    for run in part
                ],
                hovertemplate="%{x:.3g} requests/s: %{y:.1%}, %{customdata[0]} of %{customdata[1]} good"
                "%{customdata[2]}<extra></extra>",
            )
        )
    if result.rate is not None and result.low is not None and result.high is not None:
        name = f"capacity {result.rate:.3g} [{result.low:.3g}, {result.high:.3g}] requests/s"
        line = {"color": style.BLUE, "width": 2}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=name))
    grey = {"color": style.GREY, "width": 1.5, "dash": "dash"}
    target = f"target: {result.spec.target_ratio:.0%}"
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=grey, name=target))
    rates = [run.rate for run in shown]
    if max(rates) > _WIDE * min(rates):
        axis = {"type": "log", "dtick": "D2", "title_text": "offered rate (requests per second, log scale)"}
    else:
        axis = {"title_text": "offered rate (requests per second)"}
    figure.update_xaxes(**axis)
    figure.update_yaxes(title_text="requests within their objectives", tickformat=".0%", range=[-0.04, 1.06])
    return style.finish(figure, 420)


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)
