"""How quiet the sweep was: the baseline against itself, and over the order in which the runs ran."""

from __future__ import annotations

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments.models import SweepResult
from reports.figures import ratio_axis, style
from reports.metric_names import change, metric_name
from reports.pairing import aa_ratios, level_key, run_order, valid


def aa_and_drift(sweep: SweepResult) -> go.Figure:
    """Left: the two baselines of each block against each other. Right: every run in the order it ran,
    baselines marked.
    """
    metric = sweep.primary_metric
    name = metric_name(metric)
    pairs = aa_ratios(sweep, metric)
    order = [(i, cell) for i, cell in enumerate(run_order(sweep), start=1) if valid(cell.metrics.get(metric))]
    if not order:
        return style.empty(
            "No baseline has been measured yet: A/A and drift need at least one complete block."
        )
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.36, 0.64],
        horizontal_spacing=0.13,
        subplot_titles=["A/A: baseline against itself", "Drift: runs in the order they ran"],
    )
    if valid(sweep.aa.low) and valid(sweep.aa.high):
        band = {"fillcolor": style.tint(style.GREY, 0.22), "line_width": 0, "exclude_empty_subplots": False}
        figure.add_hrect(y0=sweep.aa.low, y1=sweep.aa.high, row=1, col=1, **band)
    line = {"color": style.GREY, "width": 1.5}
    figure.add_hline(y=1, line=line, row=1, col=1, exclude_empty_subplots=False)
    figure.add_trace(
        go.Scatter(
            x=[f"{pair.block}" for pair in pairs],
            y=[pair.ratio for pair in pairs],
            customdata=[change(pair.ratio) for pair in pairs],
            mode="markers",
            marker={"size": 10, "color": style.BLUE},
            name=f"second ÷ first baseline (n = {len(pairs)} blocks)",
            hovertemplate="block %{x}: %{customdata}<extra></extra>",
        ),
        row=1,
        col=1,
    )
    for is_baseline in (False, True):
        part = [(i, c) for i, c in order if (c.baseline_copy is not None) is is_baseline]
        figure.add_trace(
            go.Scatter(
                x=[i for i, _ in part],
                y=[c.metrics.get(metric) for _, c in part],
                customdata=[[style.plain(level_key(c.level)), c.block] for _, c in part],
                mode="lines+markers" if is_baseline else "markers",
                line={"color": style.VERMILLION, "width": 1.5},
                marker={
                    "size": 9 if is_baseline else 7,
                    "symbol": "diamond" if is_baseline else "circle",
                    "color": style.VERMILLION if is_baseline else style.tint(style.GREY, 0.7),
                },
                name=f"{'baseline' if is_baseline else 'other levels'} (n = {len(part)} runs)",
                hovertemplate=(
                    "run %{x}, level %{customdata[0]}, block %{customdata[1]}: %{y:.4g}<extra></extra>"
                ),
            ),
            row=1,
            col=2,
        )
    figure.update_xaxes(title_text="block", type="category", row=1, col=1)
    low, high = ratio_axis.limits([pair.ratio for pair in pairs], [sweep.aa.low, sweep.aa.high], 0.01)
    values, labels = ratio_axis.ticks(low, high)
    figure.update_yaxes(
        title_text=f"{style.plain(name.label)} change (%)",
        type="log",
        range=[math.log10(low), math.log10(high)],
        tickvals=values,
        ticktext=labels,
        row=1,
        col=1,
    )
    figure.update_xaxes(title_text="run order (1 = first)", row=1, col=2)
    figure.update_yaxes(title_text=style.plain(name.axis), rangemode="tozero", row=1, col=2)
    return style.finish(
        figure, 380, legend={"y": -0.26, "yanchor": "top"}, margin={"l": 64, "r": 20, "t": 44, "b": 96}
    )
