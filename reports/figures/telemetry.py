"""Hardware strips: one per sampled quantity, all on the run's time axis."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import style

_SCALES = {"bytes": (2**20, "MiB"), "B": (2**20, "MiB"), "Hz": (1e6, "MHz"), "ns": (1e6, "ms")}
_STRIP = 96
_GAP = 42
_LINES = 3


def telemetry(samples: pd.DataFrame | None) -> go.Figure:
    """A strip per quantity with at least one good sample, a line per source (thread, process, device), the
    largest ones. Names of the others: ``unavailable``.
    """
    if samples is None or samples.empty:
        return style.empty("This run has no telemetry.")
    good = samples[(samples["status"] == "ok") & samples["value"].notna()]
    strips = list(good.groupby("name", sort=True))
    if not strips:
        return style.empty(f"No quantity could be sampled: {unavailable(samples)}.")
    total = len(strips) * _STRIP + (len(strips) - 1) * _GAP
    figure = make_subplots(
        rows=len(strips),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=_GAP / total if len(strips) > 1 else 0,
    )
    legends = {}
    for row, (name, part) in enumerate(strips, start=1):
        sources = _largest(part)
        left_out = part["source"].nunique() - len(sources)
        for index, (source, line) in enumerate(sources):
            _line(figure, row, index, str(source), line)
        unit = _SCALES.get(str(part["unit"].iloc[0]), (1.0, str(part["unit"].iloc[0])))[1]
        figure.update_yaxes(title_text=style.plain(unit, 12), nticks=4, rangemode="tozero", row=row, col=1)
        key = "legend" if row == 1 else f"legend{row}"
        top = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].domain[1]
        place = {"orientation": "h", "x": 1, "xanchor": "right", "y": top + 2 / total, "yanchor": "bottom"}
        legends[key] = {**place, "font": {"size": 11}}
        note = f" ({left_out} smaller left out)" if left_out else ""
        figure.add_annotation(
            text=f"<b>{style.plain(name, 50)}</b>{note}",
            x=0, xanchor="left", xref="paper", y=top, yanchor="bottom", yref="paper", yshift=4,
            font={"size": 12.5},
        )  # fmt: skip
    figure.update_xaxes(title_text="seconds from the first measured request", row=len(strips))
    return style.finish(figure, total + 90, margin={"l": 72, "r": 20, "t": 36, "b": 52}, **legends)


def _largest(part: pd.DataFrame) -> list[tuple[object, pd.DataFrame]]:
    """The sources with the largest means, in that order."""
    order = part.groupby("source")["value"].mean().sort_values(ascending=False).index[:_LINES]
    return [(source, part[part["source"] == source]) for source in order]


def _line(figure: go.Figure, row: int, index: int, source: str, part: pd.DataFrame) -> None:
    unit = str(part["unit"].iloc[0])
    scale, shown_unit = _SCALES.get(unit, (1.0, unit))
    figure.add_trace(
        go.Scatter(
            x=part["t_s"],
            y=part["value"].astype(float) / scale,
            mode="lines",
            line={
                "width": 1.5,
                "color": style.SERIES[index % len(style.SERIES)],
                "dash": style.DASHES[index % len(style.DASHES)],
            },
            name=f"{style.plain(source, 22)} (n = {len(part):,})",
            legend="legend" if row == 1 else f"legend{row}",
            meta=style.plain(part["name"].iloc[0], 60),
            hovertemplate=f"%{{x:.2f}} s: %{{y:.5g}} {style.plain(shown_unit, 12)}<extra></extra>",
        ),
        row=row,
        col=1,
    )


def unavailable(samples: pd.DataFrame) -> str:
    """Quantities that never had a value, each with its reason: ``package_watts (no_permission)``."""
    found = []
    for name, part in samples.groupby("name", sort=True):
        if not ((part["status"] == "ok") & part["value"].notna()).any():
            reasons = sorted({str(s) for s in part["status"] if s != "ok"}) or ["no value"]
            found.append(f"{name} ({', '.join(reasons)})")
    return ", ".join(found)
