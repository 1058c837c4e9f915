"""Hardware strips: one panel per sampled quantity, all on the run's time axis."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import style

_SCALES = {"bytes": (2**20, "MiB"), "B": (2**20, "MiB"), "Hz": (1e6, "MHz"), "ns": (1e6, "ms")}
_STRIP = 110
_GAP = 40


def telemetry(samples: pd.DataFrame | None) -> go.Figure:
    """Strips of all quantities with at least one good sample. Names of the others: ``unavailable``."""
    if samples is None or samples.empty:
        return style.empty("This run has no telemetry.")
    good = samples[(samples["status"] == "ok") & samples["value"].notna()]
    series = list(good.groupby(["name", "source"], sort=True))
    if not series:
        return style.empty(f"No quantity could be sampled: {unavailable(samples)}.")
    total = len(series) * _STRIP + (len(series) - 1) * _GAP
    figure = make_subplots(
        rows=len(series),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=_GAP / total if len(series) > 1 else 0,
        subplot_titles=[style.plain(f"{name} ({source})", 60) for (name, source), _ in series],
    )
    for row, ((name, _), part) in enumerate(series, start=1):
        unit = str(part["unit"].iloc[0])
        scale, shown_unit = _SCALES.get(unit, (1.0, unit))
        figure.add_trace(
            go.Scatter(
                x=part["t_s"],
                y=part["value"].astype(float) / scale,
                mode="lines",
                line={"width": 1.5, "color": style.SERIES[(row - 1) % len(style.SERIES)]},
                name=f"{style.plain(name, 40)} (n = {len(part)})",
                showlegend=False,
                hovertemplate=f"%{{x:.2f}} s: %{{y:.5g}} {style.plain(shown_unit, 12)}<extra></extra>",
            ),
            row=row,
            col=1,
        )
        figure.update_yaxes(title_text=style.plain(shown_unit, 12), nticks=4, row=row, col=1)
    figure.update_xaxes(title_text="seconds from the first measured request", row=len(series))
    figure.update_annotations(x=0, xanchor="left", font={"size": 12.5})
    return style.finish(figure, total + 90, margin={"l": 72, "r": 20, "t": 36, "b": 52})


def unavailable(samples: pd.DataFrame) -> str:
    """Quantities that never had a value, each with its reason: ``package_watts (no_permission)``."""
    found = []
    for name, part in samples.groupby("name", sort=True):
        if not ((part["status"] == "ok") & part["value"].notna()).any():
            reasons = sorted({str(s) for s in part["status"] if s != "ok"}) or ["no value"]
            found.append(f"{name} ({', '.join(reasons)})")
    return ", ".join(found)
