"""Every plotted series as CSV: what a figure shows can be checked, or drawn again elsewhere."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from reports.gate_page import gate_figures_of
from reports.render import Figure
from reports.run_data import RunData
from reports.run_figures import run_figures
from reports.run_view import Tables
from reports.studies import load_gate
from reports.sweep_page import sweep_figures_of
from reports.sweeps import load_sweep
from workbench.runstore import Run

COLUMNS = ("figure", "panel", "series", "x_axis", "y_axis", "x", "y", "x_low", "x_high", "base")


def sweep_csv(folder: Path) -> str:
    """All series of the sweep in ``folder``.

    Raises:
        RunCorruptError: ``sweep.json`` can't be read.
    """
    return to_csv(sweep_figures_of(load_sweep(folder)).values())


def run_csv(run: Run) -> str:
    """All series of ``run``.

    Raises:
        RunCorruptError: ``metrics.json`` can't be read.
    """
    tables = Tables.read(RunData.of(run.path, run.manifest))
    return to_csv(run_figures(run, tables, run.metrics()).values())


def gate_csv(folder: Path) -> str:
    """All series of the gate in ``folder``.

    Raises:
        RunCorruptError: ``gate.json`` can't be read.
    """
    return to_csv(gate_figures_of(folder, load_gate(folder)).values())


def to_csv(figures: Iterable[Figure]) -> str:
    """One line per point. ``x_low`` and ``x_high`` are the ends of its interval, ``base`` where a bar
    begins.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for item in figures:
        for row in _rows(item.figure):
            writer.writerow([_cell(item.id.removeprefix("fig-")), *map(_cell, row)])
    return out.getvalue()


def _rows(figure: go.Figure) -> Iterator[list[Any]]:
    for trace in figure.data:
        axes = [(trace.xaxis or "x").replace("x", "xaxis"), (trace.yaxis or "y").replace("y", "yaxis")]
        titles = [_words(getattr(figure.layout[axis].title, "text", None)) for axis in axes]
        xs, ys = _values(trace.x), _values(trace.y)
        base = _values(getattr(trace, "base", None))
        error = getattr(trace, "error_x", None)
        more, less = _values(getattr(error, "array", None)), _values(getattr(error, "arrayminus", None))
        panel = trace.meta if isinstance(trace.meta, str) else axes[0].removeprefix("xaxis") or "1"
        for i, (x, y) in enumerate(zip(xs, ys, strict=False)):
            low = x - less[i] if i < len(less) else None
            high = x + more[i] if i < len(more) else None
            begin = base[i] if i < len(base) else None
            yield [panel, _words(trace.name), *titles, x, y, low, high, begin]


def _values(found: Any) -> list[Any]:
    if found is None:
        return []
    return list(found) if hasattr(found, "__len__") and not isinstance(found, str) else [found]


def _words(text: str | None) -> str:
    return html.unescape(re.sub(r"<br>|</?b>", " ", text or "")).strip()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is quoted; missing is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
