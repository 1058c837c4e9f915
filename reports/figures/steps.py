"""Engine steps: what a step costs, where its time goes, and tokens over time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from reports.figures import style
from reports.figures.strips import STEP_PHASES
from reports.roofline import Roofline

_SCATTER_POINTS = 4_000
_KINDS: tuple[tuple[str, str, str], ...] = (
    ("decode only", style.BLUE, "circle"),
    ("prefill and decode", style.ORANGE, "diamond"),
    ("prefill only", style.PURPLE, "square"),
)
NO_STEPS = "This run has no step trace: its target is not the builtin engine, or tracing was off."


def _kind(steps: pd.DataFrame) -> pd.Series:
    prefill, decode = steps["prefill_tokens"].fillna(0) > 0, steps["decode_tokens"].fillna(0) > 0
    names = np.select([prefill & decode, prefill], [_KINDS[1][0], _KINDS[2][0]], _KINDS[0][0])
    return pd.Series(names, index=steps.index)


def step_cost(steps: pd.DataFrame | None) -> go.Figure:
    """Step time (ms) against the tokens of the step, by kind of step."""
    if steps is None or steps.empty:
        return style.empty(NO_STEPS)
    data = steps.assign(kind=_kind(steps), tokens=steps["prefill_tokens"] + steps["decode_tokens"])
    data = data.dropna(subset=["tokens", "step_ms"])
    if data.empty:
        return style.empty(f"None of the {len(steps):,} steps has both its tokens and its time.")
    figure = go.Figure()
    for name, colour, symbol in _KINDS:
        part = data[data["kind"] == name]
        if part.empty:
            continue
        shown = _extremes_kept(part, "step_ms")
        figure.add_trace(
            go.Scatter(
                x=shown["tokens"],
                y=shown["step_ms"],
                mode="markers",
                marker={"size": 6, "symbol": symbol, "color": style.tint(colour, 0.6)},
                customdata=shown[["step_id", "prefill_tokens", "decode_tokens"]].astype(float),
                name=_counted(name, len(part), len(shown)),
                hovertemplate=(
                    "step %{customdata[0]:.0f}: %{y:.2f} ms<br>%{customdata[1]:.0f} prefill, "
                    "%{customdata[2]:.0f} decode tokens<extra></extra>"
                ),
            )
        )
    figure.update_xaxes(title_text="tokens in the step", rangemode="tozero")
    figure.update_yaxes(title_text="step time (ms)", rangemode="tozero")
    return style.finish(figure, 380)


def decode_cost(steps: pd.DataFrame | None, roofline: Roofline | None = None) -> go.Figure:
    """Time of decode-only steps (ms) against the context they read (Σ KV tokens), with a least-squares line
    and, where it is known, the least time that reading weights and KV takes.
    """
    if steps is None or steps.empty:
        return style.empty(NO_STEPS)
    part = steps[(steps["prefill_tokens"].fillna(0) == 0) & (steps["decode_tokens"].fillna(0) > 0)]
    part = part.dropna(subset=["decode_sum_sk", "step_ms"])
    if len(part) < 3:
        return style.empty("Fewer than 3 decode-only steps: nothing to fit.")
    x, y = part["decode_sum_sk"].to_numpy(dtype=float), part["step_ms"].to_numpy(dtype=float)
    shown = _extremes_kept(part, "step_ms")
    figure = go.Figure(
        go.Scatter(
            x=shown["decode_sum_sk"],
            y=shown["step_ms"],
            mode="markers",
            marker={
                "size": 6,
                "color": shown["decode_tokens"].astype(float),
                "colorscale": "Cividis",
                "colorbar": {"title": {"text": "batch"}, "thickness": 10, "len": 0.8},
            },
            customdata=shown[["step_id", "decode_tokens"]].astype(float),
            name=_counted("decode-only step", len(part), len(shown)),
            hovertemplate=(
                "step %{customdata[0]:.0f}: %{y:.2f} ms, batch %{customdata[1]:.0f}, "
                "%{x:.0f} tokens of context<extra></extra>"
            ),
        )
    )
    if np.ptp(x) > 0:
        slope, start = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=start + slope * ends,
                mode="lines",
                line={"color": style.VERMILLION, "width": 2, "dash": "dash"},
                name=f"fit: {start:.2f} ms + {1000 * slope:.3f} ms per 1,000 tokens",
                hoverinfo="skip",
            )
        )
    if roofline is not None:
        ends = np.array([0.0, x.max()])
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[roofline.at(end) for end in ends],
                mode="lines",
                line={"color": style.GREEN, "width": 2, "dash": "dot"},
                name=f"roofline: weights and KV at {roofline.read_gb_s:.3g} GB/s",
                hovertemplate="at least %{y:.2f} ms<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="context read by the step (tokens)", rangemode="tozero")
    figure.update_yaxes(title_text="step time (ms)", rangemode="tozero")
    return style.finish(figure, 380)


def step_phases(steps: pd.DataFrame | None) -> go.Figure:
    """Mean time per phase (ms), stacked, by kind of step."""
    if steps is None or steps.empty:
        return style.empty(NO_STEPS)
    data = steps.assign(kind=_kind(steps))
    if data[[column for column, _, _ in STEP_PHASES]].isna().all(axis=None):
        return style.empty(f"None of the {len(steps):,} steps has the times of its phases.")
    groups = [(name, data[data["kind"] == name]) for name, _, _ in _KINDS]
    groups = [(f"{name}<br>(n = {len(part):,})", part) for name, part in groups if len(part)]
    figure = go.Figure()
    for column, name, colour in STEP_PHASES:
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[label for label, _ in groups],
                x=[part[column].astype(float).mean() for _, part in groups],
                marker={"color": colour},
                name=name,
                hovertemplate=f"{name}: %{{x:.3f}} ms<extra></extra>",
            )
        )
    figure.update_xaxes(title_text="mean time of a step (ms)")
    figure.update_yaxes(autorange="reversed")
    return style.finish(
        figure,
        150 + 54 * len(groups),
        barmode="stack",
        legend={"traceorder": "normal"},
        margin={"l": 130, "r": 24, "t": 48, "b": 48},
    )


def throughput(
    tokens: pd.DataFrame | None, bucket_s: float, requests: pd.DataFrame | None = None
) -> go.Figure:
    """Output tokens per second in buckets of ``bucket_s`` seconds, and requests in flight at the client."""
    if tokens is None or tokens.empty or not tokens["tokens"].sum():
        return style.empty("No token event was received, so there is no throughput to show.")
    figure = go.Figure(
        go.Scatter(
            x=tokens["t_s"],
            y=tokens["tokens"] / bucket_s,
            mode="lines",
            line={"color": style.BLUE, "width": 2, "shape": "hv"},
            fill="tozeroy",
            fillcolor=style.tint(style.BLUE, 0.15),
            name=f"output tokens (n = {int(tokens['tokens'].sum()):,})",
            hovertemplate="from %{x:.2f} s: %{y:.1f} tok/s<extra></extra>",
        )
    )
    if requests is not None and len(requests.dropna(subset=["sent_s", "close_s"])):
        times, level = _in_flight(requests.dropna(subset=["sent_s", "close_s"]))
        figure.add_trace(
            go.Scatter(
                x=times,
                y=level,
                yaxis="y2",
                mode="lines",
                line={"color": style.VERMILLION, "width": 1.5, "shape": "hv", "dash": "dot"},
                name=f"requests in flight (n = {len(requests)}), right axis",
                hovertemplate="%{x:.2f} s: %{y} in flight<extra></extra>",
            )
        )
    peak = max((max(t.y, default=0) for t in figure.data[1:]), default=0)
    figure.update_xaxes(title_text="seconds from the first measured request")
    figure.update_yaxes(title_text=f"output (tok/s, mean of {bucket_s:g} s)", rangemode="tozero")
    right = {
        "title": {"text": "requests"},
        "overlaying": "y",
        "side": "right",
        "showgrid": False,
        "range": [0, 1.08 * max(float(peak), 1)],
        "dtick": max(1, round(float(peak) / 5)),
    }
    return style.finish(figure, 320, yaxis2=right, margin={"l": 64, "r": 64, "t": 48, "b": 52})


def _in_flight(requests: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    times = np.concatenate([requests["sent_s"].to_numpy(float), requests["close_s"].to_numpy(float)])
    change = np.concatenate([np.ones(len(requests)), -np.ones(len(requests))])
    order = np.argsort(times, kind="stable")
    keep = list(style.thin(len(order), 4_000))
    return times[order][keep], np.cumsum(change[order])[keep]


def _extremes_kept(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """At most a few thousand rows: an even sample, and the slowest rows whatever the sample."""
    if len(frame) <= _SCATTER_POINTS:
        return frame
    slow = frame[column].astype(float).nlargest(200).index
    even = frame.index[list(style.thin(len(frame), _SCATTER_POINTS - 200))]
    return frame.loc[even.union(slow)]


def _counted(name: str, count: int, shown: int) -> str:
    return f"{name} (n = {count:,})" if shown == count else f"{name} (n = {count:,}, {shown:,} drawn)"
