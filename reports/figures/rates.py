"""Latency and goodput over the rate of requests. Open and closed loops are never joined by a line: in a
closed loop the rate is what the target left, not what was asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import style
from reports.metric_names import metric_name

_PERCENTILES = (
    ("p50", style.BLUE, "circle"),
    ("p90", style.ORANGE, "diamond"),
    ("p99", style.VERMILLION, "square"),
)
_AXES = (("offered", "offered rate"), ("achieved", "achieved rate"))


def percentiles(points: pd.DataFrame | None, metric: str = "ttft") -> go.Figure:
    """p50, p90 and p99 of ``ttft``, ``itl`` or ``e2el`` (ms, log axis), a mark per run: left over the
    offered, right over the achieved rate, joined unless several runs had the same one. A hollow p99 had too
    few samples. ``points`` as from ``rate_points``.
    """
    columns = [f"{metric}_{p}" for p, _, _ in _PERCENTILES]
    if points is None or points.empty or points[columns].isna().all(axis=None):
        return style.empty(f"No run has a {metric_name(metric + '_').label.strip()} to draw over its rate.")
    shown = [axis for axis in _AXES if points[axis[0]].notna().any()]
    if not shown:
        return style.empty("None of these runs has a rate of requests: offered and achieved are not known.")
    figure = make_subplots(
        rows=1, cols=len(shown), shared_yaxes=True, horizontal_spacing=0.05,
        subplot_titles=[title.capitalize() for _, title in shown],
    )  # fmt: skip
    for column, (axis, title) in enumerate(shown, start=1):
        for loop, part in _loops(points, axis):
            for name, colour, symbol in _PERCENTILES:
                data = part.dropna(subset=[f"{metric}_{name}"])
                if data.empty:
                    continue
                hollow = data["p99_flagged"].astype(bool) & (name == "p99")
                figure.add_trace(
                    go.Scatter(
                        x=data[axis],
                        y=data[f"{metric}_{name}"],
                        mode="lines+markers" if data[axis].is_unique else "markers",
                        line={"color": colour, "width": 1.5, "dash": "solid" if loop == "open" else "dot"},
                        marker={
                            "size": 9,
                            "color": colour,
                            "symbol": [f"{symbol}-open" if h else symbol for h in hollow],
                            "line": {"width": 2, "color": colour},
                        },
                        text=[style.plain(label, 40) for label in data["label"]],
                        name=f"{name}, {loop} loop (n = {len(data)} runs)",
                        legendgroup=f"{name} {loop}",
                        showlegend=column == 1,
                        meta=f"{metric} over {axis}",
                        hovertemplate="%{text}: %{x:.4g}/s, %{y:.4g} ms<extra></extra>",
                    ),
                    row=1,
                    col=column,
                )
        figure.update_xaxes(title_text=f"{title} (requests/s)", rangemode="tozero", row=1, col=column)
    label = metric_name(f"{metric}_").label.strip()
    figure.update_yaxes(type="log", dtick="D2", row=1)
    figure.update_yaxes(title_text=f"{label} (ms, log scale)", row=1, col=1)
    return style.finish(
        figure, 430, legend={"y": -0.22, "yanchor": "top"}, margin={"l": 64, "r": 20, "t": 40, "b": 120}
    )


def goodput(points: pd.DataFrame | None, knee: tuple[float, float, float] | None = None) -> go.Figure:
    """Share of offered requests that met every objective, over the offered rate. ``knee``: capacity and its
    95 % interval, requests per second.
    """
    known = None if points is None else points.dropna(subset=["goodput_ratio", "offered"])
    if known is None or known.empty:
        return style.empty("No run has both an offered rate and a goodput: set objectives with --goodput.")
    figure = go.Figure()
    if knee:
        rate, low, high = knee
        figure.add_vrect(x0=low, x1=high, fillcolor=style.tint(style.BLUE, 0.14), line_width=0)
        figure.add_vline(x=rate, line={"color": style.BLUE, "width": 2})
        name = f"capacity {rate:.3g} [{low:.3g}, {high:.3g}] requests/s"
        line = {"color": style.BLUE, "width": 2}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=name))
    for loop, part in _loops(known, "offered"):
        for valid, symbol, word in ((True, "circle", ""), (False, "x", ", not valid")):
            data = part[part["valid"].astype(bool) == valid]
            if data.empty:
                continue
            colour = style.GREEN if loop == "open" else style.ORANGE
            figure.add_trace(
                go.Scatter(
                    x=data["offered"],
                    y=data["goodput_ratio"],
                    mode="lines+markers" if valid and not knee else "markers",
                    line={"color": colour, "width": 1.5, "dash": "solid" if loop == "open" else "dot"},
                    marker={"size": 10, "color": colour, "symbol": symbol},
                    text=[style.plain(label, 40) for label in data["label"]],
                    name=f"{loop} loop{word} (n = {len(data)} runs)",
                    hovertemplate="%{text}: %{y:.1%} at %{x:.4g}/s<extra></extra>",
                )
            )
    figure.update_xaxes(title_text="offered rate (requests/s)", rangemode="tozero")
    figure.update_yaxes(title_text="goodput (% of offered requests)", tickformat=".0%", range=[-0.04, 1.06])
    return style.finish(figure, 400)


def _loops(points: pd.DataFrame, axis: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each kind of loop on its own, by rate."""
    for loop, part in points.dropna(subset=[axis]).sort_values(axis).groupby("loop", sort=True):
        yield style.plain(loop, 20), part
