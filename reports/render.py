"""Jinja environment and the safe embedding of figures in a page. Everything is escaped unless this file made
it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from reports.facts import setting
from reports.figures import style
from reports.metric_names import change, metric_name, number, with_unit
from reports.pairing import level_key


@dataclass(frozen=True)
class Figure:
    """A figure in a page: its anchor, its caption (plain text) and its data."""

    id: str
    title: str
    caption: str
    figure: go.Figure

    @property
    def height(self) -> int:
        return int(self.figure.layout.height or 360)

    @property
    def json(self) -> Markup:
        """The figure without its template (the page brings a light and a dark one), safe inside a script
        element.
        """
        data = json.loads(self.figure.to_json() or "{}")
        data.get("layout", {}).pop("template", None)
        return script_json(data)


def script_json(value: Any) -> Markup:
    """JSON for ``<script type="application/json">``: no character in it can end the element; NaN becomes
    null.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=str)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@cache
def environment() -> Environment:
    """The templates of ``reports/templates``; autoescape is on for every one of them."""
    env = Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        number=number,
        change=change,
        level=level_key,
        metric=metric_name,
        moment=moment,
        setting=setting,
        sentence=sentence,
    )
    env.globals.update(with_unit=with_unit)
    return env


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def moment(iso: str) -> str:
    """``2026-11-29T10:00:00Z`` → ``29 November 2026, 10:00 UTC``; what is no date stays as it is."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def page(template: str, /, **context: Any) -> str:
    """Render a self-contained page: styles, script, plotly and both figure templates inside."""
    plotly = get_plotlyjs()
    if "</script" in plotly.lower():
        plotly = plotly.replace("</script", "<\\/script")
    templates = {t.name: style.template(t).to_plotly_json() for t in (style.LIGHT, style.DARK)}
    return (
        environment()
        .get_template(template)
        .render(
            plotly_js=Markup(plotly),
            figure_templates=script_json(templates),
            **context,
        )
    )
