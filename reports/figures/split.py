"""Where time goes before the first token, and which part of it an objective was missed by."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from reports.figures import style
from workbench.timeline.segments import CHUNK_GAP, DECODE, PREEMPTED, PREFILL, QUEUE, RECOMPUTE
from workbench.timeline.split import FRONT_END, OUTPUT, PARTS

LAG = "client_lag"
LOOKS: Mapping[str, tuple[str, str, str]] = {
    LAG: ("client lag", style.GREY, "."),
    FRONT_END: ("front end", style.GREY, ""),
    QUEUE: ("queue", style.VERMILLION, ""),
    PREFILL: ("prefill", style.ORANGE, ""),
    CHUNK_GAP: ("between chunks", style.PURPLE, ""),
    DECODE: ("decode", style.BLUE, ""),
    PREEMPTED: ("preempted", style.PURPLE, "/"),
    RECOMPUTE: ("recompute", style.ORANGE, "/"),
    OUTPUT: ("output", style.SKY, ""),
}
"""Part → (name, colour, pattern): where a colour comes twice the pattern tells them apart."""
_BANDS = (
    ("fastest half", 0.0, 0.5),
    ("50 to 90 %", 0.5, 0.9),
    ("90 to 99 %", 0.9, 0.99),
    ("slowest 1 %", 0.99, 1.0),
)
NO_TRACE = "This run has no trace of the engine's events, so its time can't be split into parts."


def ttft_split(frame: pd.DataFrame | None) -> go.Figure:
    """Mean time to first token by part (ms), for requests grouped by how long it was. ``frame`` as from
    ``time_split``: the parts of a request sum to its TTFT exactly.
    """
    known = _traced(frame, "ttft_queue_ns")
    if known is None:
        return style.empty(NO_TRACE)
    known = known.sort_values("ttft_ns", kind="stable")
    rows = []
    for name, low, high in _BANDS:
        part = known.iloc[round(low * len(known)) : round(high * len(known))]
        if len(part):
            rows.append((f"{name}<br>(n = {len(part):,})", part))
    figure = go.Figure()
    for part_name in PARTS:
        values = [float(part[f"ttft_{part_name}_ns"].astype(float).mean()) / 1e6 for _, part in rows]
        if any(value > 0 for value in values):
            figure.add_trace(_bar(part_name, values, [label for label, _ in rows], "%{x:.2f} ms"))
    figure.update_xaxes(title_text=f"mean time to first token (ms){_sampled(frame)}")
    return _stacked(figure, 170 + 52 * len(rows), left=120)


def slo_misses(frame: pd.DataFrame | None, bounds: Mapping[str, float]) -> go.Figure:
    """Requests that missed an objective, by the part of their time that was the most above its median among
    the requests that met it. ``bounds``: metric → ms.
    """
    if not bounds:
        return style.empty(
            "No objective was set for this run (workbench bench --goodput), so none was missed."
        )
    if frame is None or frame.empty:
        return style.empty("This run has no measured request.")
    missed = {key: attribute(frame, key, bound) for key, bound in bounds.items()}
    if not any(len(found) for found in missed.values()):
        failed = int((frame["status"] != "ok").sum())
        text = f" {failed} failed requests count as bad without one." if failed else ""
        return style.empty(f"No objective was missed by the {len(frame):,} requests looked at.{text}")
    labels = [
        f"{style.plain(key)} ≤ {bounds[key]:g} ms<br>({len(found):,} of {len(frame):,} missed it)"
        for key, found in missed.items()
    ]
    figure = go.Figure()
    for part in (*LOOKS, UNKNOWN):
        counts = [int((found == part).sum()) for found in missed.values()]
        if any(counts):
            figure.add_trace(_bar(part, counts, labels, "%{x} requests", f" (n = {sum(counts):,})"))
    figure.update_xaxes(title_text=f"requests that missed it, by the part at fault{_sampled(frame)}")
    return _stacked(figure, 170 + 56 * len(labels), left=150)


UNKNOWN = "not traced"


def attribute(frame: pd.DataFrame, key: str, bound: float) -> pd.Series:
    """Part at fault of every request that missed ``key`` (ms): the one with the largest excess over its
    median among the requests that met it (over 0, when none did).

    ``ttft`` looks at the way to the first token, ``e2el`` at all of it, ``itl``, ``tpot`` and ``stall`` at
    what came after the first token; ``*_sched`` have the client's own lag as one more part.
    """
    column = f"{key}_ms"
    if column not in frame:
        return pd.Series([], dtype=object)
    values = frame[column].astype(float)
    base = key.removesuffix("_sched")
    first = frame[[f"ttft_{part}_ns" for part in PARTS]].astype(float).set_axis(list(PARTS), axis=1)
    whole = frame[[f"{part}_ns" for part in PARTS]].astype(float).set_axis(list(PARTS), axis=1)
    parts = first if base == "ttft" else whole if base == "e2el" else whole - first
    if key.endswith("_sched"):
        parts = parts.assign(**{LAG: frame["client_lag_ns"].astype(float)})
    met = parts[(values <= bound) & values.notna()]
    excess = parts - (met.median() if len(met) else 0.0)
    mine = excess[values > bound]
    traced = mine.notna().all(axis=1)
    return mine[traced].idxmax(axis=1).reindex(mine.index, fill_value=UNKNOWN)


def _stacked(figure: go.Figure, height: int, left: int) -> go.Figure:
    """Rows of stacked bars, the first on top."""
    figure.update_yaxes(autorange="reversed")
    return style.finish(
        figure,
        height,
        barmode="stack",
        legend={"traceorder": "normal"},
        margin={"l": left, "r": 24, "t": 56, "b": 52},
    )


def _bar(
    part: str, values: list[float] | list[int], labels: list[str], hover: str, count: str = ""
) -> go.Bar:
    name, colour, pattern = LOOKS.get(part, (UNKNOWN, style.GREY, "x"))
    return go.Bar(
        orientation="h",
        x=values,
        y=labels,
        marker={"color": colour, "pattern": {"shape": pattern, "fgcolor": "#FFFFFF"}},
        name=name + count,
        hovertemplate=f"{name}: {hover}<extra></extra>",
    )


def _traced(frame: pd.DataFrame | None, column: str) -> pd.DataFrame | None:
    if frame is None or frame.empty or column not in frame:
        return None
    known = frame.dropna(subset=[column, "ttft_ns"])
    return known if len(known) else None


def _sampled(frame: pd.DataFrame | None) -> str:
    total = 0 if frame is None else int(frame.attrs.get("total", len(frame)))
    return f", {len(frame):,} of {total:,} requests" if frame is not None and total > len(frame) else ""
