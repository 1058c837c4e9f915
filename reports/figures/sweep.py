"""Figures of a sweep: response per level (paired log ratios), and the levels side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments.models import Level, Ratio, SweepResult, Verdict
from reports.figures import ratio_axis, style
from reports.metric_names import HEADLINE, change, metric_name
from reports.pairing import BlockRatio, block_ratios, level_key, ordered_levels, run_order, valid


def response(sweep: SweepResult, metrics: Sequence[str] | None = None) -> go.Figure:
    """Forest plot: a row per level, a panel per metric, ratio to the same block's baseline on a log axis.

    Dots are blocks, the bar is the 95 % interval, the symbol its point estimate. The grey band is the A/A
    interval (two baselines against each other: what no change looks like), the dashed lines are ±delta, the
    effect of interest.
    """
    chosen = [m for m in (metrics or sweep_metrics(sweep)) if any(m in level.ratio for level in sweep.levels)]
    if not chosen or not sweep.levels:
        return style.empty("No level has been measured yet: the response needs at least one complete block.")
    found = ordered_levels(sweep)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    panel = 60 + 36 * len(found)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        horizontal_spacing=0.075,
        vertical_spacing=0.0 if rows == 1 else 104 / (rows * (panel + 104)),
        subplot_titles=[_heading(metric, metric == sweep.primary_metric) for metric in chosen],
    )
    names = [style.plain(level_key(level.value)) for level in found]
    for index, metric in enumerate(chosen):
        row, column = divmod(index, columns)
        place = {"row": row + 1, "col": column + 1}
        _reference_bands(figure, sweep, metric, place)
        dots = block_ratios(sweep, metric)
        for level, name in zip(found, names, strict=True):
            _level_row(figure, level, name, metric, dots.get(level_key(level.value), []), place)
        _ratio_axis(figure, found, dots, metric, place, sweep)
        figure.update_yaxes(title_text=style.plain(sweep.factor) if column == 0 else None, **place)
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=names[::-1], range=_row_range(found)
    )
    height = rows * (panel + 104) + 40
    legend = {"y": -70 / height, "yanchor": "top"}
    return style.finish(figure, height, legend=legend, margin={"l": 76, "r": 20, "t": 40, "b": 96})


def _row_range(found: Sequence[Level]) -> list[float]:
    return [-0.6, len(found) - 0.4]


def sweep_metrics(sweep: SweepResult) -> list[str]:
    """Headline metrics that the sweep holds, the primary one first."""
    wanted = [sweep.primary_metric, *(m for m in HEADLINE if m != sweep.primary_metric)]
    return [m for m in wanted if any(m in level.medians or m in level.ratio for level in sweep.levels)]


def _heading(metric: str, primary: bool) -> str:
    text = style.plain(metric_name(metric).label)
    return f"<b>{text}</b> (primary)" if primary else text


def _reference_bands(figure: go.Figure, sweep: SweepResult, metric: str, place: dict[str, int]) -> None:
    aa = sweep.aa if metric == sweep.primary_metric else None
    if aa and valid(aa.low) and valid(aa.high):
        figure.add_vrect(
            x0=aa.low,
            x1=aa.high,
            fillcolor=style.tint(style.GREY, 0.22),
            line_width=0,
            layer="below",
            exclude_empty_subplots=False,
            **place,
        )
    figure.add_vline(
        x=1, line={"color": style.GREY, "width": 1.5}, layer="below", exclude_empty_subplots=False, **place
    )
    for edge in (1 / (1 + sweep.delta), 1 + sweep.delta):
        figure.add_vline(
            x=edge,
            line={"color": style.GREY, "width": 1, "dash": "dash"},
            layer="below",
            exclude_empty_subplots=False,
            **place,
        )


def _level_row(
    figure: go.Figure, level: Level, name: str, metric: str, dots: list[BlockRatio], place: dict[str, int]
) -> None:
    colour_of, symbol_of = style.VERDICT_COLOURS, style.VERDICT_SYMBOLS
    ratio = level.ratio.get(metric)
    verdict = str(ratio.verdict) if ratio else str(Verdict.INCONCLUSIVE)
    colour = colour_of[verdict]
    if dots:
        figure.add_trace(
            go.Scatter(
                x=[dot.ratio for dot in dots],
                y=[name] * len(dots),
                mode="markers",
                marker={"size": 7, "color": style.tint(colour, 0.45), "line": {"width": 0}},
                customdata=[[dot.block, change(dot.ratio)] for dot in dots],
                name=f"{name}: blocks",
                meta=metric,
                hovertemplate="block %{customdata[0]}: %{customdata[1]}<extra></extra>",
                showlegend=False,
            ),
            **place,
        )
    if ratio is None or not valid(ratio.point) or ratio.verdict is Verdict.BASELINE:
        return
    arms = (
        {
            "type": "data",
            "symmetric": False,
            "array": [ratio.high - ratio.point],
            "arrayminus": [ratio.point - ratio.low],
        }
        if ratio.point is not None and ratio.low is not None and ratio.high is not None
        else {}
    )
    figure.add_trace(
        go.Scatter(
            x=[ratio.point],
            y=[name],
            mode="markers",
            marker={
                "size": 12,
                "symbol": symbol_of[verdict],
                "color": colour,
                "line": {"width": 2, "color": colour},
            },
            error_x={**arms, "color": colour, "thickness": 2.5, "width": 6} if arms else None,
            name=f"{verdict.lower()} (n = {ratio.n_blocks} blocks)",
            meta=metric,
            legendgroup=verdict,
            showlegend=not any(t.legendgroup == verdict for t in figure.data),
            hovertemplate=(
                f"{name}: {change(ratio.point)} [{change(ratio.low)}, {change(ratio.high)}]<br>"
                f"{verdict}, n = {ratio.n_blocks} blocks<extra></extra>"
            ),
        ),
        **place,
    )


def _ratio_axis(
    figure: go.Figure,
    levels: Sequence[Level],
    dots: dict[str, list[BlockRatio]],
    metric: str,
    place: dict[str, int],
    sweep: SweepResult,
) -> None:
    ratios = [level.ratio[metric] for level in levels if metric in level.ratio]
    points = [dot.ratio for found in dots.values() for dot in found] + [r.point for r in ratios]
    low, high = ratio_axis.limits(points, [v for r in ratios for v in (r.low, r.high)], sweep.delta)
    shown, labels = ratio_axis.ticks(low, high)
    better = metric_name(metric).lower_is_better
    hint = {True: "← better", False: "better →", None: ""}[better]
    figure.update_xaxes(
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=shown,
        ticktext=labels,
        title_text=f"change (%)  {hint}".rstrip(),
        **place,
    )


def levels(sweep: SweepResult, metrics: Sequence[str] = HEADLINE) -> go.Figure:
    """Small multiples: a panel per metric, absolute values; dots are runs, the line joins the medians of the
    levels.
    """
    chosen = [m for m in metrics if any(valid(level.medians.get(m)) for level in sweep.levels)]
    if not chosen:
        return style.empty("No run of this sweep has stored metrics yet.")
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    titles = [style.plain(metric_name(m).label) for m in chosen]
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=titles, horizontal_spacing=0.09, vertical_spacing=0.2
    )
    found = ordered_levels(sweep)
    names = [style.plain(level_key(level.value)) for level in found]
    for index, metric in enumerate(chosen):
        row, column = divmod(index, columns)
        cells = [
            (style.plain(level_key(cell.level)), cell.metrics.get(metric), cell.block)
            for cell in run_order(sweep)
            if valid(cell.metrics.get(metric))
        ]
        place = {"row": row + 1, "col": column + 1}
        figure.add_trace(
            go.Scatter(
                x=[c[0] for c in cells],
                y=[c[1] for c in cells],
                customdata=[c[2] for c in cells],
                mode="markers",
                marker={"size": 6, "color": style.tint(style.GREY, 0.6)},
                name=f"run (n = {sum(c.run is not None for c in run_order(sweep))})",
                legendgroup="run",
                showlegend=index == 0,
                meta=metric,
                hovertemplate="%{x}: %{y:.4g}<br>block %{customdata}<extra></extra>",
            ),
            **place,
        )
        figure.add_trace(
            go.Scatter(
                x=names,
                y=[level.medians.get(metric) for level in found],
                mode="lines+markers",
                line={"color": style.BLUE, "width": 2},
                marker={
                    "size": 9,
                    "color": [
                        style.VERMILLION if level.value == sweep.baseline else style.BLUE for level in found
                    ],
                    "symbol": ["diamond" if level.value == sweep.baseline else "circle" for level in found],
                },
                name="median (diamond: baseline)",
                legendgroup="median",
                showlegend=index == 0,
                meta=metric,
                hovertemplate="%{x}: %{y:.4g}<extra>median</extra>",
            ),
            **place,
        )
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=names, **place)
        figure.update_yaxes(title_text=metric_name(metric).unit or "value", rangemode="tozero", **place)
        if metric_name(metric).unit == "share":
            figure.update_yaxes(title_text="% of requests", tickformat=".0%", **place)
    figure.update_xaxes(title_text=style.plain(sweep.factor), row=rows)
    return style.finish(
        figure, 130 + 230 * rows, legend={"y": 1.09}, margin={"l": 60, "r": 20, "t": 84, "b": 50}
    )


def ratio_text(ratio: Ratio | None) -> str:
    """``+8.0 % [+5.1 %, +11.0 %]`` or why there is no number."""
    if ratio is None:
        return "–"
    if not valid(ratio.point):
        return ratio.reason or "–"
    return f"{change(ratio.point)} [{change(ratio.low)}, {change(ratio.high)}]"
