"""How latencies are distributed: ECDF of TTFT, ITL and end-to-end latency, with SLO lines, for one run or
several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import style

PANELS: tuple[tuple[str, str], ...] = (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E latency"))
_ECDF_POINTS = 1_500
_TAIL_POINTS = 500


def latencies(requests: pd.DataFrame | None, gaps: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    """Samples per panel with columns ``ms`` and ``weight`` (ITL counts tokens, the others requests), and
    ``count`` where a row stands for several.
    """
    out: dict[str, pd.DataFrame] = {}
    if requests is not None:
        ok = requests[requests["status"] == "ok"]
        for name, column in (("ttft", "ttft_ms"), ("e2el", "e2el_ms")):
            out[name] = pd.DataFrame({"ms": ok[column].astype(float), "weight": 1.0}).dropna()
    if gaps is not None:
        itl = {"ms": gaps["itl_ms"].astype(float), "weight": gaps["tokens"].astype(float)}
        itl["count"] = gaps["gaps"] if "gaps" in gaps else pd.Series(1, index=gaps.index)
        out["itl"] = pd.DataFrame(itl).dropna()
    return out


def ecdf(runs: Mapping[str, Mapping[str, pd.DataFrame]], slo: Mapping[str, float] | None = None) -> go.Figure:
    """Three panels on log axes; a colour and a dash per run, n in the legend, a vertical line per SLO.

    ``runs``: label → samples as from ``latencies``. ``slo``: metric → ms.
    """
    return _panels(runs, slo or {}, tail=False)


def ccdf(runs: Mapping[str, Mapping[str, pd.DataFrame]], slo: Mapping[str, float] | None = None) -> go.Figure:
    """As ``ecdf``, the other way round: the share that is slower, on two log axes, so that tails show."""
    return _panels(runs, slo or {}, tail=True)


def _panels(
    runs: Mapping[str, Mapping[str, pd.DataFrame]], slo: Mapping[str, float], *, tail: bool
) -> go.Figure:
    shown = [p for p in PANELS if any(len(samples.get(p[0], ())) for samples in runs.values())]
    if not shown:
        return style.empty("No request of this run finished with a token, so there is no latency to show.")
    figure = make_subplots(
        rows=1, cols=len(shown), subplot_titles=[title for _, title in shown], horizontal_spacing=0.06
    )
    for column, (name, _) in enumerate(shown, start=1):
        for index, (label, samples) in enumerate(runs.items()):
            data = samples.get(name)
            if data is not None and not data.empty:
                figure.add_trace(_curve(data, label, index, name, column, tail), row=1, col=column)
        limit = slo.get(name)
        low, high = _range(runs, name, limit)
        if limit:
            _slo_line(figure, limit, column, on_the_left=limit * limit < low * high)
        ticks = _ticks(low, high)
        figure.update_xaxes(
            type="log",
            range=[math.log10(low), math.log10(high)],
            tickvals=ticks,
            ticktext=[f"{t:,g}" for t in ticks],
            title_text="ms",
            row=1,
            col=column,
        )
    _share_axis(figure, tail)
    lines = max(len(runs), 1)
    height = 360 + 20 * lines
    legends = {
        "legend" if i == 0 else f"legend{i + 1}": {
            "orientation": "v",
            "x": i / len(shown) + (0.012 * i),
            "xanchor": "left",
            "y": -76 / (height - 140),
            "yanchor": "top",
            "font": {"size": 12},
        }
        for i in range(len(shown))
    }
    return style.finish(figure, height, margin={"l": 64, "r": 20, "t": 40, "b": 78 + 20 * lines}, **legends)


def _share_axis(figure: go.Figure, tail: bool) -> None:
    """Percent on the left of the first panel; of a tail down to what the largest panel can tell."""
    figure.update_yaxes(range=[0, 102], showticklabels=False)
    if tail:
        least = min((float(t.y[t.y > 0].min()) for t in figure.data if (t.y > 0).any()), default=1.0)
        low = math.floor(math.log10(least))
        values = [10.0**d for d in range(low, 3)]
        figure.update_yaxes(
            type="log", range=[low, 2.05], tickvals=values, ticktext=[f"{v:g}" for v in values]
        )
    title = "requests or tokens slower than this (%)" if tail else "requests or tokens at most this slow (%)"
    figure.update_yaxes(title_text=title, showticklabels=True, row=1, col=1)


def _curve(data: pd.DataFrame, label: str, index: int, name: str, column: int, tail: bool) -> go.Scatter:
    x, y, count = _steps(data)
    if tail:
        x, y = x[:-1], 100 - y[:-1]  # nothing is slower than the slowest: it has no place on a log axis
    sign = ">" if tail else "≤"
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={
            "shape": "hv",
            "width": 2,
            "color": style.SERIES[index % len(style.SERIES)],
            "dash": style.DASHES[index % len(style.DASHES)],
        },
        name=f"{style.plain(label, 32)} (n = {count:,})",
        legend="legend" if column == 1 else f"legend{column}",
        showlegend=True,
        meta=name,
        hovertemplate=f"%{{y:.4g}} % {sign} %{{x:.4g}} ms<extra></extra>",
    )


def _steps(data: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, int]:
    """Sorted values, cumulative share in percent and the number of samples, reduced to what a screen can
    show: evenly, with both ends and the slowest ones.
    """
    ordered = data.sort_values("ms")
    values = np.maximum(ordered["ms"].to_numpy(dtype=float), 1e-3)
    share = 100 * np.cumsum(ordered["weight"].to_numpy(dtype=float)) / float(ordered["weight"].sum())
    count = int(ordered["count"].sum()) if "count" in ordered else len(ordered)
    last = np.append(values[1:] != values[:-1], True)  # of equal values the one that counts them all
    values, share = values[last], share[last]
    tail = max(0, len(values) - _TAIL_POINTS)
    keep = sorted({*style.thin(len(values), _ECDF_POINTS), *range(tail, len(values))})
    return values[keep], share[keep], count


def _slo_line(figure: go.Figure, limit: float, column: int, on_the_left: bool) -> None:
    axis = "" if column == 1 else str(column)
    line = {"color": style.VERMILLION, "width": 1.5, "dash": "dash"}
    figure.add_shape(
        type="line", x0=limit, x1=limit, y0=0, y1=1, xref=f"x{axis}", yref=f"y{axis} domain", line=line
    )
    # Shapes take the value on a log axis, annotations take its logarithm.
    figure.add_annotation(
        text=f"SLO {limit:g} ms",
        x=math.log10(limit),
        y=0.02,
        xref=f"x{axis}",
        yref=f"y{axis} domain",
        xanchor="left" if on_the_left else "right",
        yanchor="bottom",
        xshift=4 if on_the_left else -4,
        font={"size": 12},
    )


def _range(
    runs: Mapping[str, Mapping[str, pd.DataFrame]], name: str, limit: float | None
) -> tuple[float, float]:
    found = [samples[name]["ms"] for samples in runs.values() if len(samples.get(name, ()))]
    values = [v for f in found for v in (float(f.min()), float(f.max()))] + ([limit] if limit else [])
    low, high = max(min(values), 1e-3), max(max(values), 1e-3)
    return low / 1.15, high * 1.15


def _ticks(low: float, high: float) -> list[float]:
    """As many round values as have room: more inside of one decade, the decades alone over many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    width = math.log10(high / low)
    parts: tuple[float, ...] = (1, 2, 5) if width < 1.6 else (1, 3) if width < 2.6 else (1,)
    if width < 0.9:
        parts = (1, 1.5, 2, 3, 4, 5, 6, 8)
    return [p * 10.0**d for d in decades for p in parts if low <= p * 10.0**d <= high]
