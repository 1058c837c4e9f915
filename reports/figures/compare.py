"""Several runs side by side: each metric with its interval, a row per run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures import style
from reports.metric_names import metric_name
from workbench.metrics import flat

DEFAULT: tuple[str, ...] = ("ttft_p50", "itl_p50", "itl_p99", "e2el_p50", "output_tok_s", "goodput_ratio")


def metrics(runs: Mapping[str, Mapping[str, Any]], chosen: tuple[str, ...] = DEFAULT) -> go.Figure:
    """A panel per metric. ``runs``: label → ``metrics.json``; bars are the stored bootstrap intervals of a
    run.
    """
    values = {label: flat(found) for label, found in runs.items()}
    shown = [m for m in chosen if any(v.get(m) is not None for v in values.values())]
    if not shown:
        return style.empty("None of these runs has stored metrics.")
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    panel = 40 + 34 * len(runs)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[style.plain(metric_name(m).label) for m in shown],
        horizontal_spacing=0.05,
        vertical_spacing=0 if rows == 1 else 96 / (rows * (panel + 96)),
    )
    names = [style.plain(label, 26) for label in runs]
    for index, metric in enumerate(shown):
        row, column = divmod(index, columns)
        for number, (label, found) in enumerate(runs.items()):
            value = values[label].get(metric)
            if value is None:
                continue
            colour = style.SERIES[number % len(style.SERIES)]
            low, high = interval(found, metric)
            figure.add_trace(
                go.Scatter(
                    x=[value],
                    y=[names[number]],
                    mode="markers",
                    marker={"size": 11, "color": colour},
                    error_x={
                        "type": "data",
                        "symmetric": False,
                        "array": [high - value],
                        "arrayminus": [value - low],
                    }
                    | {"color": colour, "thickness": 2.5, "width": 5}
                    if low is not None and high is not None
                    else None,
                    showlegend=False,
                    hovertemplate=f"{names[number]}: %{{x:.5g}} {metric_name(metric).unit}<extra></extra>",
                ),
                row=row + 1,
                col=column + 1,
            )
        name = metric_name(metric)
        hint = {True: "← better", False: "better →", None: ""}[name.lower_is_better]
        unit = "% of requests" if name.unit == "share" else name.unit
        figure.update_xaxes(title_text=f"{unit}  {hint}", rangemode="tozero", row=row + 1, col=column + 1)
        if name.unit == "share":
            figure.update_xaxes(tickformat=".0%", row=row + 1, col=column + 1)
        figure.update_yaxes(showticklabels=column == 0, row=row + 1, col=column + 1)
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=names[::-1], range=[-0.6, len(names) - 0.4]
    )
    return style.finish(figure, rows * (panel + 96) + 20, margin={"l": 120, "r": 20, "t": 40, "b": 60})


def interval(found: Mapping[str, Any], metric: str) -> tuple[float | None, float | None]:
    """The stored interval of a latency statistic (``ttft_p50`` …); (None, None) when there is none."""
    name, _, statistic = metric.rpartition("_")
    summary = (found.get("latency") or {}).get(name) or {}
    pair = (summary.get("ci") or {}).get(statistic)
    if not isinstance(pair, list | tuple) or len(pair) != 2 or any(v is None for v in pair):
        return None, None
    return float(pair[0]), float(pair[1])
