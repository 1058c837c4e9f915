"""The gate's figures: pairs of tier 2 with the bounds of its rule, gates over time, a machine's noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments.gate.decision import EXCLUDED, TOLERATED
from experiments.gate.models import GateResult, Tier
from experiments.gate.selftest import SelfTest
from experiments.gate.tier2 import METRICS
from reports.figures import style

VERDICTS: Mapping[str, tuple[str, str]] = {
    "PASS": (style.GREEN, "circle"),
    "FAIL": (style.VERMILLION, "x"),
    "INCONCLUSIVE": (style.GREY, "circle-open"),
    "UNUSABLE": (style.PURPLE, "diamond-open"),
    "SKIPPED": (style.GREY, "line-ew-open"),
}
LABELS = {"ttft_ms": "TTFT", "itl_ms": "ITL", "output_tok_s": "Output tok/s"}


def wall_clock(tier: Tier) -> go.Figure:
    """Tier 2: a row per metric, a dot per usable pair (head against base, right is worse), the interval over
    pairs, and the bounds of the rule: tolerated and excluded slow-down.
    """
    pairs = [p for p in _list(tier.details.get("pairs")) if isinstance(p, Mapping) and p.get("usable", True)]
    found = {f.name: f for f in tier.findings}
    rows = [name for name in METRICS if name in found or any(_worse(p, name) is not None for p in pairs)]
    if not rows:
        return style.empty("This tier holds no pairs.")
    figure = go.Figure()
    dots = [(100 * (w - 1), LABELS[name], p) for name in rows for p in pairs if (w := _worse(p, name))]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _, _ in dots],
            y=[y for _, y, _ in dots],
            mode="markers",
            marker={"color": style.tint(style.GREY, 0.55), "size": 8},
            name=f"pairs (n = {len(pairs)})",
            hovertemplate="%{y}: %{x:+.1f} %<extra></extra>",
        )
    )
    for verdict, (colour, symbol) in VERDICTS.items():
        part = [f for n in rows if (f := found.get(n)) and f.verdict == verdict and f.ratio is not None]
        if not part:
            continue
        points = [100 * ((f.ratio or 1.0) - 1) for f in part]
        figure.add_trace(
            go.Scatter(
                x=points,
                y=[LABELS[f.name] for f in part],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 13, "line": {"width": 2, "color": colour}},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * ((f.high or f.ratio or 1) - (f.ratio or 1)) for f in part],
                    "arrayminus": [100 * ((f.ratio or 1) - (f.low or f.ratio or 1)) for f in part],
                    "color": colour,
                    "thickness": 2,
                },
                name=f"{verdict.lower()} (n = {len(part)})",
                hovertemplate="%{y}: %{x:+.1f} %<extra></extra>",
            )
        )
    _bounds(figure)
    figure.update_xaxes(title_text="head against base (%, right of 0 is worse)", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=[LABELS[n] for n in rows][::-1])
    return style.finish(figure, 190 + 62 * len(rows), margin={"l": 110, "r": 20, "t": 72, "b": 52})


def _bounds(figure: go.Figure, axis: str = "x") -> None:
    draw = figure.add_vline if axis == "x" else figure.add_hline
    for share, dash, words in ((TOLERATED, "dot", "tolerated"), (EXCLUDED, "dash", "excluded by a pass")):
        place = {axis: 100 * share}
        line = {"color": style.GREY, "width": 1.5, "dash": dash}
        draw(**place, line=line)
        name = f"+{share:.0%}: {words}"
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", line=line, name=name))


def _worse(pair: Any, name: str) -> float | None:
    """Head over base in neighbouring turns, turned so that above 1 is worse; None where it is missing."""
    try:
        ratio = float(pair["ratio"][name])
    except (KeyError, TypeError, ValueError):
        return None
    if not 0 < ratio < math.inf:
        return None
    return ratio if METRICS[name] > 0 else 1 / ratio


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def history(gates: Sequence[tuple[str, GateResult]]) -> go.Figure:
    """Gates over time, oldest first: a panel per metric with the change, its interval and the verdict."""
    rows: dict[str, list[tuple[str, Any]]] = {}
    gates = [(style.plain(name, 60), gate) for name, gate in gates]
    for name, gate in gates:
        for tier in gate.tiers:
            for finding in tier.findings if tier.tier == 2 else []:
                if finding.name in LABELS and finding.ratio is not None:
                    rows.setdefault(finding.name, []).append((name, finding))
    if not rows:
        return style.empty("No gate of this store measured the wall clock (tier 2).")
    names = [name for name, _ in gates]
    figure = make_subplots(rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    seen: set[str] = set()
    counts = Counter(str(finding.verdict) for found in rows.values() for _, finding in found)
    for row, metric in enumerate([m for m in LABELS if m in rows], start=1):
        for verdict, (colour, symbol) in VERDICTS.items():
            part = [(n, f) for n, f in rows[metric] if f.verdict == verdict]
            if not part:
                continue
            figure.add_trace(
                go.Scatter(
                    x=[n for n, _ in part],
                    y=[100 * (f.ratio - 1) for _, f in part],
                    mode="markers",
                    marker={
                        "color": colour,
                        "symbol": symbol,
                        "size": 11,
                        "line": {"width": 2, "color": colour},
                    },
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [100 * ((f.high or f.ratio) - f.ratio) for _, f in part],
                        "arrayminus": [100 * (f.ratio - (f.low or f.ratio)) for _, f in part],
                        "color": colour,
                    },
                    name=f"{verdict.lower()} (n = {counts[verdict]} metrics of gates)",
                    legendgroup=verdict,
                    showlegend=verdict not in seen,
                    hovertemplate="%{x}: %{y:+.1f} %<extra></extra>",
                ),
                row=row,
                col=1,
            )
            seen.add(verdict)
        for share, dash in ((TOLERATED, "dot"), (EXCLUDED, "dash")):
            figure.add_hline(
                y=100 * share, line={"color": style.GREY, "width": 1.2, "dash": dash}, row=row, col=1
            )
        figure.update_yaxes(title_text=f"{LABELS[metric]}<br>(% worse)", row=row, col=1)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=names)
    figure.update_xaxes(title_text="gate, oldest first", row=len(rows), col=1)
    return style.finish(figure, 130 + 150 * len(rows), margin={"l": 84, "r": 20, "t": 56, "b": 60})


def noise(found: SelfTest) -> go.Figure:
    """A/A: every run of the same revision against the series' middle, in the order in which they ran."""
    figure = go.Figure()
    names = [m.name for m in found.metrics if m.name in LABELS]
    for index, name in enumerate(names):
        values = [run.get(name) for run in found.runs]
        known = sorted(v for v in values if isinstance(v, int | float) and v > 0)
        if not known:
            continue
        middle = known[len(known) // 2]
        figure.add_trace(
            go.Scatter(
                x=list(range(1, len(values) + 1)),
                y=[100 * (v / middle - 1) if isinstance(v, int | float) else None for v in values],
                mode="lines+markers",
                line={"color": style.SERIES[index], "width": 1.2, "dash": style.DASHES[index]},
                marker={"size": 6},
                name=f"{LABELS[name]} (n = {len(known)})",
                hovertemplate="run %{x}: %{y:+.1f} %<extra></extra>",
            )
        )
    if not figure.data:
        return style.empty("This record holds no runs.")
    figure.update_xaxes(title_text="run, in order (two neighbours are a pair)")
    figure.update_yaxes(title_text="against the middle (%)")
    return style.finish(figure, 340)
