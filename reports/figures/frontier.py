"""Throughput against interactivity: what the machine gives against what one user feels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from reports.figures import style


def throughput_interactivity(
    points: pd.DataFrame | None, slo: Mapping[str, float] | None = None, per: str = "machine"
) -> go.Figure:
    """Output tokens per second of the ``per`` over tokens per second of one user; upper right is better.

    Bars are the stored 95 % intervals: of the median TPOT across, of the steady window's throughput along.
    With an SLO on ``itl`` or ``tpot`` (ms) the side that meets it is shaded. Points without both values are
    counted, not drawn. ``points`` as from ``rate_points``.
    """
    if points is None or points.empty:
        return style.empty("No run to draw: throughput against interactivity needs at least one.")
    known = points.dropna(subset=["interactivity", "throughput"])
    missing = len(points) - len(known)
    if known.empty:
        return style.empty(
            f"None of the {len(points)} runs has both a throughput and a time per output token (TPOT)."
        )
    figure = go.Figure()
    bound = next(((slo or {})[m] for m in ("itl", "tpot") if (slo or {}).get(m)), None)
    right = max(float(known["interactivity"].max()) * 1.15, 1150.0 / bound if bound else 0.0)
    if bound:
        _shade(figure, 1000.0 / bound, right, f"meets {bound:g} ms a token")
    front = _frontier(known)
    figure.add_trace(
        go.Scatter(
            x=front["interactivity"],
            y=front["throughput"],
            mode="lines",
            line={"color": style.GREEN, "width": 2, "dash": "dot", "shape": "hv"},
            name=f"frontier (n = {len(front)})",
            hoverinfo="skip",
        )
    )
    groups = list(known.groupby("series", sort=False))
    for index, (name, part) in enumerate(groups):
        figure.add_trace(
            _series(part, f"{style.plain(name, 32)} (n = {len(part)})", index, right, len(known) <= 12)
        )
    if missing:
        left_out = f"{missing} without throughput or TPOT left out"
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker={"opacity": 0}, name=left_out))
    figure.update_xaxes(
        title_text="interactivity (tok/s of one user = 1 / median TPOT)  better →",
        range=[0, right],
    )
    figure.update_yaxes(
        title_text=f"output (tok/s of the {style.plain(per, 20)})  better →", rangemode="tozero"
    )
    return style.finish(figure, 420)


def _series(part: pd.DataFrame, name: str, index: int, right: float, labelled: bool) -> go.Scatter:
    colour = style.SERIES[index % len(style.SERIES)]
    valid = part["valid"].astype(bool)
    return go.Scatter(
        x=part["interactivity"],
        y=part["throughput"],
        text=[style.plain(label, 24) for label in part["label"]],
        mode="markers+text" if labelled else "markers",
        textposition=[
            f"{'top' if i % 2 == 0 else 'bottom'} {_side(x / right)}"
            for i, x in enumerate(part["interactivity"])
        ],
        marker={
            "size": 10,
            "color": colour,
            "symbol": [style.MARKS[index % len(style.MARKS)] if ok else "x-thin" for ok in valid],
            "line": {"width": [0 if ok else 2.5 for ok in valid], "color": colour},
        },
        error_x=_arms(part, "interactivity", colour),
        error_y=_arms(part, "throughput", colour),
        name=name,
        customdata=["" if ok else ", not valid" for ok in valid],
        hovertemplate="%{text}: %{x:.4g} tok/s a user, %{y:.4g} tok/s%{customdata}<extra></extra>",
    )


def _side(share: float) -> str:
    """Where a label has room, by how far to the right its point is."""
    return "right" if share < 0.12 else "left" if share > 0.88 else "center"


def _arms(part: pd.DataFrame, column: str, colour: str) -> dict[str, Any] | None:
    more = (part[f"{column}_high"] - part[column]).clip(lower=0)
    less = (part[column] - part[f"{column}_low"]).clip(lower=0)
    if more.isna().all() and less.isna().all():
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": more.fillna(0),
        "arrayminus": less.fillna(0),
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def _shade(figure: go.Figure, from_x: float, to_x: float, words: str) -> None:
    figure.add_vrect(x0=from_x, x1=to_x, fillcolor=style.tint(style.GREEN, 0.12), line_width=0, layer="below")
    line = {"color": style.GREEN, "width": 1.5, "dash": "dash"}
    figure.add_vline(x=from_x, line=line)
    figure.add_annotation(
        text=words, x=from_x, xanchor="left", xshift=5, y=0.02, yref="paper", yanchor="bottom"
    )


def _frontier(points: pd.DataFrame) -> pd.DataFrame:
    """Points that no other one beats on both, by interactivity."""
    order = points.sort_values(["interactivity", "throughput"], ascending=False)
    best = order["throughput"].astype(float).cummax().shift(fill_value=float("-inf"))
    return order[order["throughput"] > best].iloc[::-1]
