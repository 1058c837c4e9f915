"""Step strips: what the engine did in each step, as panels that share a time axis with the requests above
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from reports.figures import style

_POINTS = 3_000
_IDLE_S = 0.1
"""The engine has nothing to do when no step began for that long; shorter gaps lie between steps."""
STEP_PHASES: tuple[tuple[str, str, str], ...] = (
    ("schedule_ms", "schedule", style.GREY),
    ("prepare_ms", "prepare", style.SKY),
    ("forward_ms", "forward", style.BLUE),
    ("sample_ms", "sample", style.PURPLE),
    ("output_ms", "output", style.ORANGE),
)
STOPS: tuple[str, ...] = (
    "queue_empty",
    "token_budget",
    "max_num_seqs",
    "kv_blocks",
    "long_prefill_cap",
    "remote_load",
    "preempted",
)
STOP_TEXT: dict[str, str] = {
    "queue_empty": "nobody was waiting",
    "token_budget": "the step's token budget was spent",
    "max_num_seqs": "the batch held the most sequences allowed",
    "kv_blocks": "too few KV blocks were free",
    "long_prefill_cap": "enough long prompts were already in the batch",
    "remote_load": "KV of the next request was still loading",
    "preempted": "a request had just been preempted",
}


@dataclass(frozen=True)
class Panel:
    """One strip: its title and how to draw it into a row of a subplot grid."""

    title: str
    draw: Callable[[go.Figure, int], None]
    height: int = 0


def panels(steps: pd.DataFrame | None, window: tuple[float, float] | None) -> list[Panel]:
    """Strips for the steps inside ``window``; none when the run has no step trace."""
    if steps is None or steps.empty:
        return []
    part = steps
    if window is not None:
        part = steps[(steps["end_s"] >= window[0]) & (steps["start_s"] <= window[1])]
    if part.empty:
        return []
    reduced, note = reduce_steps(part)
    stops = [s for s in STOPS if (part["admission_stop"] == s).any()]
    stops += sorted({str(s) for s in part["admission_stop"].dropna()} - set(STOPS))
    phases = [phase for phase in STEP_PHASES if phase[0] in reduced and reduced[phase[0]].notna().any()]
    timed = Panel("Time of a step by phase", lambda f, row: _phases(f, row, reduced, phases))
    return [
        Panel(f"Tokens per step{note}", lambda f, row: _tokens(f, row, reduced)),
        *([timed] if phases else []),
        Panel("Queue", lambda f, row: _queue(f, row, reduced)),
        Panel("KV blocks", lambda f, row: _kv(f, row, reduced)),
        Panel(
            "Why admission stopped",
            lambda f, row: _admission(f, row, part, stops),
            26 + 17 * max(len(stops), 2),
        ),
    ]


def reduce_steps(steps: pd.DataFrame, limit: int = _POINTS) -> tuple[pd.DataFrame, str]:
    """At most ``limit`` rows: buckets of equal time with the mean of tokens and the peak of queue and KV
    use.
    """
    if len(steps) <= limit:
        return steps, ""
    low, high = float(steps["start_s"].min()), float(steps["end_s"].max())
    width = (high - low) / limit
    bucket = ((steps["start_s"] - low) // width).astype(int)
    how = dict.fromkeys(("num_running", "num_waiting", "kv_used", "kv_cached"), "max")
    how |= {
        "kv_free": "min",
        "prefill_tokens": "mean",
        "decode_tokens": "mean",
        "start_s": "min",
        "end_s": "max",
    }
    how |= {"num_preempted": "sum"}
    how |= {column: "mean" for column, _, _ in STEP_PHASES if column in steps}
    found = steps.groupby(bucket).agg(how).reset_index(drop=True)
    return found, f" (mean of {1000 * width:.0f} ms, peaks below)"


def _hv(
    steps: pd.DataFrame, column: str, idle: float | None, gap_s: float
) -> tuple[list[float], list[float]]:
    """Stair points; over a gap of more than ``gap_s`` the value drops to ``idle`` (None: it stays)."""
    xs: list[float] = []
    ys: list[float] = []
    starts, ends = steps["start_s"].tolist(), steps["end_s"].tolist()
    values = steps[column].astype(float).tolist()
    for i, (start, end, value) in enumerate(zip(starts, ends, values, strict=True)):
        xs.append(start)
        ys.append(value)
        following = starts[i + 1] if i + 1 < len(starts) else None
        if following is None or (idle is not None and following - end > gap_s):
            xs.append(end)
            ys.append(value if idle is None else idle)
    return xs, ys


def _stair(
    figure: go.Figure,
    row: int,
    steps: pd.DataFrame,
    column: str,
    name: str,
    colour: str,
    stack: str | None,
    dash: str = "solid",
    idle: float | None = None,
    gap_s: float = 0.002,
) -> None:
    xs, ys = _hv(steps, column, idle, gap_s)
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={"shape": "hv", "width": 1 if stack else 2, "color": colour, "dash": dash},
            stackgroup=stack,
            fillcolor=style.tint(colour, 0.75) if stack else None,
            name=name,
            legend=f"legend{row}",
            hovertemplate=f"{name}: %{{y:.5g}}<extra></extra>",
        ),
        row=row,
        col=1,
    )


def _tokens(figure: go.Figure, row: int, steps: pd.DataFrame) -> None:
    _stair(figure, row, steps, "decode_tokens", "decode", style.BLUE, "tokens", idle=0.0)
    _stair(figure, row, steps, "prefill_tokens", "prefill", style.ORANGE, "tokens", idle=0.0)
    figure.update_yaxes(title_text="tokens", rangemode="tozero", row=row, col=1)


def _phases(figure: go.Figure, row: int, steps: pd.DataFrame, phases: Sequence[tuple[str, str, str]]) -> None:
    for column, name, colour in phases:
        _stair(figure, row, steps, column, name, colour, "phases", idle=0.0)
    figure.update_yaxes(title_text="ms", rangemode="tozero", row=row, col=1)


def _queue(figure: go.Figure, row: int, steps: pd.DataFrame) -> None:
    _stair(figure, row, steps, "num_running", "running", style.BLUE, None, idle=0.0, gap_s=_IDLE_S)
    _stair(figure, row, steps, "num_waiting", "waiting", style.VERMILLION, None, "dot", 0.0, _IDLE_S)
    figure.update_yaxes(title_text="requests", rangemode="tozero", row=row, col=1)


def _kv(figure: go.Figure, row: int, steps: pd.DataFrame) -> None:
    _stair(figure, row, steps, "kv_used", "used", style.BLUE, "kv")
    _stair(figure, row, steps, "kv_cached", "free, but cached", style.SKY, "kv")
    _stair(figure, row, steps, "kv_free", "free", style.tint_solid(style.GREY), "kv")
    figure.update_yaxes(title_text="blocks", rangemode="tozero", row=row, col=1)


def _admission(figure: go.Figure, row: int, steps: pd.DataFrame, stops: list[str]) -> None:
    """A bar for every stretch of steps with the same reason, one line per reason; ✕ marks a preemption."""
    change = (steps["admission_stop"] != steps["admission_stop"].shift()).cumsum()
    runs = steps.groupby(change).agg(
        stop=("admission_stop", "first"),
        start=("start_s", "min"),
        end=("end_s", "max"),
        n=("step_id", "size"),
    )
    runs = runs.dropna(subset=["stop"])
    runs = runs.iloc[list(style.thin(len(runs), 6_000))]
    figure.add_trace(
        go.Bar(
            orientation="h",
            base=runs["start"],
            x=runs["end"] - runs["start"],
            y=[style.plain(s, 24) for s in runs["stop"]],
            width=0.66,
            marker={"color": [_stop_colour(s) for s in runs["stop"]], "line": {"width": 0}},
            customdata=[
                [int(n), style.plain(STOP_TEXT.get(s, s))]
                for s, n in zip(runs["stop"], runs["n"], strict=True)
            ],
            hovertemplate="%{customdata[1]}<br>%{customdata[0]} steps from %{base:.3f} s<extra></extra>",
            showlegend=False,
        ),
        row=row,
        col=1,
    )
    lost = steps[steps["num_preempted"].fillna(0) > 0]
    if len(lost):
        figure.add_trace(
            go.Scatter(
                x=lost["start_s"],
                y=[style.plain(s, 24) for s in lost["admission_stop"]],
                mode="markers",
                marker={"symbol": "x", "size": 9, "color": style.VERMILLION},
                customdata=lost[["num_preempted", "preempted_tokens"]].astype(float),
                name=f"preemption (n = {int(lost['num_preempted'].sum())})",
                legend=f"legend{row}",
                hovertemplate="%{customdata[0]} preempted, %{customdata[1]} tokens lost<extra></extra>",
            ),
            row=row,
            col=1,
        )
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=[style.plain(s, 24) for s in stops][::-1],
        range=[-0.6, max(len(stops), 2) - 0.4],
        tickfont={"size": 11},
        showgrid=False,
        row=row,
        col=1,
    )


def _stop_colour(stop: str) -> str:
    return {"queue_empty": style.GREY, "preempted": style.VERMILLION}.get(stop, style.PURPLE)
