"""One look for every figure: palette, light and dark templates, and a figure that says why it is empty.

The hues are Okabe and Ito's ("Color Universal Design", 2008), with their lightness changed so that each has a
contrast of 3:1 on white and on near-black (WCAG 2.2, 1.4.11): a figure keeps its traces when a page switches
theme. Any two differ by a ΔE of more than 10 for readers with protanopia, deuteranopia and tritanopia too.
Every meaning carried by a colour is carried by a symbol or a word as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

BLUE = "#0070C6"
SKY = "#4A9BC4"
GREEN = "#009E60"
ORANGE = "#C28800"
VERMILLION = "#C83A00"
PURPLE = "#B8429A"
GREY = "#888C92"
SERIES: tuple[str, ...] = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)

VERDICT_COLOURS: Mapping[str, str] = {
    "BASELINE": GREY,
    "BETTER": GREEN,
    "WORSE": VERMILLION,
    "EQUIVALENT": BLUE,
    "INCONCLUSIVE": GREY,
    "FAILED": VERMILLION,
}
VERDICT_SYMBOLS: Mapping[str, str] = {
    "BASELINE": "circle",
    "BETTER": "triangle-up",
    "WORSE": "triangle-down",
    "EQUIVALENT": "square",
    "INCONCLUSIVE": "circle-open",
    "FAILED": "x",
}
MARKS: tuple[str, ...] = ("circle", "diamond", "square", "triangle-up", "cross", "star")
DASHES: tuple[str, ...] = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MAX_POINTS = 10_000
"""Points that one trace may hold; longer series are reduced before they are drawn."""


@dataclass(frozen=True)
class Theme:
    """Colours of the page around the data."""

    name: str
    text: str
    muted: str
    grid: str
    line: str
    hover: str


LIGHT = Theme("light", text="#1F2937", muted="#5B6472", grid="#E6E9EE", line="#C3C9D2", hover="#FFFFFF")
DARK = Theme("dark", text="#E5E9F0", muted="#A3ADBB", grid="#2B323D", line="#4A5362", hover="#1B2028")


def template(theme: Theme) -> go.layout.Template:
    """Plotly template: transparent ground, quiet grid, the page's own type."""
    axis: dict[str, Any] = {
        "gridcolor": theme.grid,
        "linecolor": theme.line,
        "zerolinecolor": theme.line,
        "zerolinewidth": 1,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.line,
        "tickfont": {"color": theme.muted, "size": 12},
        "title": {"font": {"color": theme.muted, "size": 12.5}, "standoff": 8},
        "automargin": True,
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": theme.text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "yanchor": "bottom",
                "y": 1.02,
                "x": 0,
                "xanchor": "left",
                "font": {"size": 12, "color": theme.muted},
                "bgcolor": "rgba(0,0,0,0)",
            },
            "hoverlabel": {
                "bgcolor": theme.hover,
                "bordercolor": theme.line,
                "font": {"family": FONT, "size": 12, "color": theme.text},
            },
            "annotationdefaults": {"font": {"color": theme.text, "size": 12.5}, "showarrow": False},
            "margin": {"l": 64, "r": 24, "t": 56, "b": 52},
            "hovermode": "closest",
        }
    )


def themed(figure: go.Figure, theme: Theme) -> go.Figure:
    """The same figure in another theme (a new object: figures may be cached)."""
    copy = go.Figure(figure)
    copy.update_layout(template=template(theme))
    return copy


def finish(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Apply the light template, the height, and a revision key that keeps a reader's zoom over reruns."""
    # A single trace has a legend, too: that is where its n is.
    figure.update_layout(
        template=template(LIGHT), height=height, uirevision="keep", **{"showlegend": True, **layout}
    )
    return figure


def empty(reason: str, height: int = 220) -> go.Figure:
    """A figure without data says why, in the place where the data would be."""
    figure = go.Figure()
    figure.add_annotation(text=plain(reason), x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 14})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finish(figure, height, margin={"l": 16, "r": 16, "t": 16, "b": 16}, meta={"empty": True})


def is_empty(figure: go.Figure) -> bool:
    """Was the figure made by ``empty``?"""
    return bool((figure.layout.meta or {}).get("empty"))


def plain(value: object, limit: int = 160) -> str:
    """Text for titles, legends, ticks and hovers, which plotly reads as HTML: tags stay text, length is
    bounded.
    """
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def tint(colour: str, alpha: float) -> str:
    """``#RRGGBB`` with transparency."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def tint_solid(colour: str) -> str:
    """``colour`` half way to mid grey: a quiet ground that still shows on white and on near-black."""
    return "#" + "".join(f"{(int(colour[i : i + 2], 16) + 0xB8) // 2:02X}" for i in (1, 3, 5))


def thin(count: int, limit: int = MAX_POINTS) -> Sequence[int]:
    """Evenly spaced indices, first and last included, at most ``limit`` of ``count``."""
    if count <= limit:
        return range(count)
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]
