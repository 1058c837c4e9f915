"""The still picture of a figure shows what the figure shows."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from reports.figures import latency, static, style

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def samples(count: int = 4_000) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    return {
        name: pd.DataFrame({"ms": rng.lognormal(middle, 0.5, count), "weight": 1.0})
        for name, middle in (("ttft", 4.0), ("itl", 2.0), ("e2el", 5.0))
    }


def points(path: str) -> list[tuple[float, float]]:
    """Corners of a path of ``M``, then ``H`` and ``V`` in turns."""
    start, *rest = re.split("(?=[HV])", path.removeprefix("M"))
    x, y = map(float, start.split())
    found = [(x, y)]
    for word in rest:
        x, y = (float(word[1:]), y) if word[0] == "H" else (x, float(word[1:]))
        found.append((x, y))
    return found


@pytest.mark.parametrize("draw", [latency.ecdf, latency.ccdf])
def test_curves_lines_and_words_are_those_of_the_figure(draw) -> None:
    figure = draw({"a": samples(), "b": samples(50)}, {"ttft": 120.0})
    root = ElementTree.fromstring(static.svg(figure, style.LIGHT))
    paths = root.findall(f"{SVG}path")
    assert [p.get("stroke") for p in paths] == [t.line.color for t in figure.data]
    texts = [t.text for t in root.findall(f"{SVG}text")]
    assert {"TTFT", "ITL", "E2E latency", "SLO 120 ms", "a (n = 4,000)", "b (n = 50)"} <= set(texts)
    ticks = [text for axis in ("xaxis", "xaxis2", "xaxis3") for text in figure.layout[axis].ticktext]
    assert set(ticks) <= set(texts)
    limit = next(one for one in root.findall(f"{SVG}line") if one.get("stroke") == style.VERMILLION)
    low, high = figure.layout.xaxis.range
    width = static.WIDTH - figure.layout.margin.l - figure.layout.margin.r
    share = (np.log10(120.0) - low) / (high - low) * figure.layout.xaxis.domain[1]
    assert float(limit.get("x1", 0)) == pytest.approx(figure.layout.margin.l + share * width, abs=0.1)


def test_a_curve_goes_through_the_figure_s_points_and_no_finer_than_pixels() -> None:
    figure = latency.ecdf({"a": samples()})
    trace = figure.data[0]
    root = ElementTree.fromstring(static.svg(figure, style.LIGHT))
    corners = points(root.findall(f"{SVG}path")[0].get("d", ""))
    assert len(corners) < 2 * static.WIDTH / 3
    low, high = figure.layout.xaxis.range
    left = figure.layout.margin.l
    width = figure.layout.xaxis.domain[1] * (static.WIDTH - left - figure.layout.margin.r)
    bottom = figure.layout.height - figure.layout.margin.b
    tall = bottom - figure.layout.margin.t
    x, y = corners[-1]
    assert x == pytest.approx(left + (np.log10(trace.x[-1]) - low) / (high - low) * width, abs=0.1)
    assert y == pytest.approx(bottom - 100.0 / 102.0 * tall, abs=0.1)
    heights = [y for _, y in corners]
    assert heights == sorted(heights, reverse=True)


def test_a_hostile_name_stays_text_and_themes_differ() -> None:
    figure = latency.ecdf({HOSTILE: samples(10)})
    light, dark = static.svg(figure, style.LIGHT), static.svg(figure, style.DARK)
    assert "<img" not in light
    names = [t.text or "" for t in ElementTree.fromstring(light).findall(f"{SVG}text")]
    assert any(name.startswith("</script><img src=x") for name in names)
    assert style.LIGHT.grid in light
    assert style.DARK.grid in dark
    assert style.LIGHT.grid not in dark
    kind, _, data = static.image(figure, style.LIGHT).partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == light


def test_a_run_with_one_sample_and_a_panel_less() -> None:
    figure = latency.ccdf({"a": {"e2el": pd.DataFrame({"ms": [5.0], "weight": [1.0]})}})
    root = ElementTree.fromstring(static.svg(figure, style.LIGHT))
    assert "E2E latency" in [t.text for t in root.findall(f"{SVG}text")]
