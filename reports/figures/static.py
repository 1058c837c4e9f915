"""A figure as a still picture, so that it is there before the browser has loaded plotly (5 MB of script, two
seconds of CPU). Draws what figures with lines on plain axes are made of: axes, curves, vertical lines,
titles, legends. The interactive figure takes its place when it is ready.
"""

from __future__ import annotations

import base64
from html import escape, unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from reports.figures import style

WIDTH = 1080
"""Pixels; the picture is scaled to the page."""
_DASHES = {"solid": "", "dash": "9 5", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "14 6"}
_STEP = 1.5
"""Pixels between two points of a curve."""
_Box = tuple[float, float, float, float]
"""Left, top, width and height of the place for all axes, in pixels."""


class _Axes:
    """One pair of axes: from values to pixels."""

    def __init__(self, figure: go.Figure, suffix: str, box: _Box) -> None:
        left, top, width, height = box
        self.x: Any = figure.layout[f"xaxis{suffix}"]
        self.y: Any = figure.layout[f"yaxis{suffix}"]
        across, up = self.x.domain or (0, 1), self.y.domain or (0, 1)
        self.left, self.right = left + across[0] * width, left + across[1] * width
        self.top, self.bottom = top + (1 - up[1]) * height, top + (1 - up[0]) * height

    def px(self, values: Any) -> Any:
        low, high = self.x.range
        found = np.log10(values) if self.x.type == "log" else np.asarray(values, float)
        return self.left + (found - low) / (high - low) * (self.right - self.left)

    def py(self, values: Any) -> Any:
        low, high = self.y.range
        found = np.log10(values) if self.y.type == "log" else np.asarray(values, float)
        return self.bottom - (found - low) / (high - low) * (self.bottom - self.top)


def svg(figure: go.Figure, theme: style.Theme) -> str:
    """The picture as SVG text, :data:`WIDTH` wide and as high as the figure. All axes need a range."""
    height = float(figure.layout.height)
    margin = figure.layout.margin
    box = (margin.l, margin.t, WIDTH - margin.l - margin.r, height - margin.t - margin.b)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'font-family="{escape(style.FONT)}" font-size="12" fill="{theme.muted}">'
    ]
    axes = {}
    for name in figure.layout:
        if name.startswith("xaxis"):
            suffix = name.removeprefix("xaxis")
            axes[suffix] = _Axes(figure, suffix, box)
            parts += _frame(axes[suffix], theme)
    for shape in figure.layout.shapes:
        one = axes[shape.xref.removeprefix("x")]
        x = float(one.px(shape.x0))
        parts.append(_line(x, one.top, x, one.bottom, shape.line.color, shape.line.width, "9 5"))
    for trace in figure.data:
        one = axes[(trace.xaxis or "x").removeprefix("x")]
        parts.append(_curve(trace, one))
        parts += _legend(trace, figure, box)
    for note in figure.layout.annotations:
        parts.append(_note(note, axes, box, theme))
    return "".join([*parts, "</svg>"])


def image(figure: go.Figure, theme: style.Theme) -> str:
    """As ``svg``, as the source of an ``<img>``: there it can run nothing and load nothing."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure, theme).encode()).decode()


def _frame(one: _Axes, theme: style.Theme) -> list[str]:
    parts = []
    values = one.x.tickvals if one.x.tickvals is not None else ()
    for value, text in zip(values, one.x.ticktext or (), strict=False):
        x = float(one.px(value))
        parts.append(_line(x, one.top, x, one.bottom, theme.grid, 1))
        parts.append(_text(x, one.bottom + 18, text, "middle"))
    shares = one.y.tickvals if one.y.tickvals is not None else range(0, 101, 20)
    labels = one.y.ticktext if one.y.ticktext is not None else [f"{s:g}" for s in shares]
    for value, text in zip(shares, labels, strict=True):
        y = float(one.py(value))
        if one.top - 1 <= y <= one.bottom + 1:
            parts.append(_line(one.left, y, one.right, y, theme.grid, 1))
            if one.y.showticklabels is not False:
                parts.append(_text(one.left - 8, y + 4, text, "end"))
    if one.y.title.text:
        x, y = one.left - 48, (one.top + one.bottom) / 2
        parts.append(_text(x, y, one.y.title.text, "middle", f' transform="rotate(-90 {x:.1f} {y:.1f})"'))
    parts.append(_text((one.left + one.right) / 2, one.bottom + 38, one.x.title.text or "", "middle"))
    parts.append(_line(one.left, one.bottom, one.right, one.bottom, theme.line, 1))
    parts.append(_line(one.left, one.top, one.left, one.bottom, theme.line, 1))
    return parts


def _curve(trace: go.Scatter, one: _Axes) -> str:
    x, y = one.px(np.asarray(trace.x, float)), one.py(np.asarray(trace.y, float))
    if not len(x):
        return ""  # the tail of a single sample
    # Of the points of one pixel column the last: curves here rise or fall throughout.
    keep = np.append(np.diff(np.floor(x / _STEP)) != 0, True)
    x, y = x[keep], y[keep]
    path = f"M{x[0]:.1f} {y[0]:.1f}" + "".join(
        f"H{a:.1f}V{b:.1f}" if trace.line.shape == "hv" else f"L{a:.1f} {b:.1f}"
        for a, b in zip(x[1:], y[1:], strict=True)
    )
    dash = _DASHES.get(trace.line.dash or "solid", "9 5")
    return (
        f'<path d="{path}" fill="none" stroke="{trace.line.color}" stroke-width="{trace.line.width:g}"'
        + (f' stroke-dasharray="{dash}"' if dash else "")
        + "/>"
    )


def _legend(trace: go.Scatter, figure: go.Figure, box: _Box) -> list[str]:
    left, top, width, height = box
    name = trace.legend or "legend"
    place = figure.layout[name]
    row = [t.name for t in figure.data if (t.legend or "legend") == name].index(trace.name)
    x, y = left + place.x * width, top + (1 - place.y) * height + 14 + 20 * row
    dash = _DASHES.get(trace.line.dash or "solid", "9 5")
    return [_line(x, y - 4, x + 30, y - 4, trace.line.color, 2, dash), _text(x + 36, y, trace.name, "start")]


def _note(note: Any, axes: dict[str, _Axes], box: _Box, theme: style.Theme) -> str:
    left, top, width, height = box
    anchor = {"left": "start", "right": "end"}.get(note.xanchor, "middle")
    if note.xref == "paper":
        x, y = left + note.x * width, top + (1 - note.y) * height - 6
    else:
        one = axes[note.xref.removeprefix("x")]
        low, high = one.x.range  # a note's place on a log axis is the logarithm
        x = one.left + (note.x - low) / (high - low) * (one.right - one.left) + (note.xshift or 0)
        y = one.bottom - note.y * (one.bottom - one.top) - 5
    size = note.font.size or 12.5
    return _text(x, y, note.text, anchor, f' fill="{theme.text}" font-size="{size:g}"')


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float, dash: str = "") -> str:
    style_of = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"{style_of}/>'
    )


def _text(x: float, y: float, text: object, anchor: str, more: str = "") -> str:
    shown = escape(unescape(str(text)))  # plotly's texts are escaped already
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{shown}</text>'
