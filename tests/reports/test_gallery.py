"""What every figure owes its reader, checked on all of them: units on axes, n in legends, few enough points,
readable colours.
"""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from reports.figures import style
from reports.render import script_json
from tests.reports import gallery
from tests.reports.gate_factory import write_gate
from tests.reports.store_factory import write_run, write_sweep
from workbench.runstore import RunStore

GROUNDS = {"light": "#FFFFFF", "dark": "#1A1F27"}
PALETTE = {
    name: getattr(style, name) for name in ("BLUE", "SKY", "GREEN", "ORANGE", "VERMILLION", "PURPLE", "GREY")
}
NO_COUNT = re.compile(
    r"roofline|fit:|capacity |\+\d+ ?%|target|unused|first token|schedule|prepare|forward|sample|output"
    r"|decode$|prefill$|running|waiting|used|free|median|left out"
)
"""Series that aren't samples: reference lines, and strips, whose title counts."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, go.Figure]:
    root = tmp_path_factory.mktemp("gallery")
    write_run(root, "chat", count=30)
    write_run(root, "other", chunk=64, count=20, failed=2)
    write_sweep(root, "sweep", blocks=2, count=6)
    write_gate(root / "gate-1")
    write_gate(root / "gate-2")
    found = dict(gallery.of_store(root))
    found |= dict(gallery.of_nothing())
    found |= dict(gallery.of_nan(RunStore(root).open("chat")))
    return found


def test_every_axis_has_a_title_with_a_unit(figures: dict[str, go.Figure]) -> None:
    """A shared axis has it once; an axis of named rows needs none, its names say what they are."""
    for name, figure in figures.items():
        if style.is_empty(figure):
            continue
        layout = figure.to_plotly_json()["layout"]
        for kind in "xy":
            titled = any(
                axis.get("title", {}).get("text")
                for key, axis in layout.items()
                if re.fullmatch(rf"{kind}axis\d*", key)
            )
            rows = all(isinstance(v, str) for t in figure.data for v in as_list(t[kind]) if v is not None)
            assert titled or rows, (name, kind)


def as_list(values: object) -> list[object]:
    return [] if values is None else list(values)


def test_every_sample_tells_its_n(figures: dict[str, go.Figure]) -> None:
    for name, figure in figures.items():
        for trace in figure.data:
            if trace.showlegend is False or not trace.name or NO_COUNT.search(trace.name):
                continue
            in_rows = any("n = " in str(value) for value in trace.y)
            assert in_rows or re.search(r"n = [\d,]+", trace.name), (name, trace.name)


def test_no_trace_is_too_long_and_all_of_it_is_json(figures: dict[str, go.Figure]) -> None:
    for name, figure in figures.items():
        for trace in figure.data:
            assert trace.x is None or len(trace.x) <= style.MAX_POINTS, name
        assert json.loads(script_json(json.loads(figure.to_json() or "{}"))), name


def test_what_is_empty_says_why(figures: dict[str, go.Figure]) -> None:
    empty = {name: figure for name, figure in figures.items() if name.startswith("empty-")}
    assert len(empty) == 15
    for name, figure in empty.items():
        assert style.is_empty(figure), name
        assert len(figure.layout.annotations[0].text) > 20, name


def test_colours_can_be_told_from_both_grounds() -> None:
    """WCAG 2.2, 1.4.11: graphical objects have a contrast of 3:1 against what is beside them."""
    for (name, colour), (theme, ground) in itertools.product(PALETTE.items(), GROUNDS.items()):
        assert contrast(colour, ground) >= 3.0, (name, theme)
    for theme in (style.LIGHT, style.DARK):
        ground = GROUNDS[theme.name]
        assert contrast(theme.text, ground) >= 7.0
        assert contrast(theme.muted, ground) >= 4.5


def test_colours_can_be_told_apart_with_every_common_vision() -> None:
    """Machado, Oliveira, Fernandes, 2009: what dichromats see, compared in CIELAB (ΔE 1976)."""
    for vision, matrix in VISIONS.items():
        seen = {name: lab(np.array(matrix) @ linear(colour)) for name, colour in PALETTE.items()}
        for one, other in itertools.combinations(seen, 2):
            assert np.linalg.norm(seen[one] - seen[other]) > 10, (vision, one, other)


VISIONS = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB under D65."""
    xyz = np.array(TO_XYZ) @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two ``#RRGGBB``."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    return float(linear(colour) @ np.array(TO_XYZ[1]))


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
