"""Figures of capacity searches and gates against the numbers that they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.figures import block_pool, capacity, gate, style
from reports.figures.block_pool import Block, Mark
from tests.reports.study_factory import write_capacity, write_gate, write_self_test


def _named(figure, start: str):
    return next(trace for trace in figure.data if trace.name.startswith(start))


def test_probes_stand_at_their_rate_and_ratio(tmp_path: Path) -> None:
    figure = capacity.goodput_against_rate(write_capacity(tmp_path))
    passed, missed = _named(figure, "met the target"), _named(figure, "missed it")
    assert passed.name == "met the target (n = 3)"
    assert list(passed.x) == [3.0, 3.8, 4.0]
    assert list(passed.y) == [0.98, 0.93, 0.91]
    assert list(missed.x) == [5.0, 4.2]
    assert missed.customdata[0][2] == ", queue grows"
    assert _named(figure, "capacity").name == "capacity 4.05 [3.84, 4.28] requests/s"
    assert [(s.x0, s.x1) for s in figure.layout.shapes if s.type == "rect"] == [(3.84, 4.28)]
    assert "objectives" in figure.layout.yaxis.title.text
    assert figure.layout.xaxis.title.text == "offered rate (requests per second)"


def test_rates_far_apart_get_a_log_axis(tmp_path: Path) -> None:
    found = write_capacity(tmp_path)
    far = found.runs[0].model_copy(update={"rate": 100.0})
    figure = capacity.goodput_against_rate(found.model_copy(update={"runs": [*found.runs, far]}))
    assert figure.layout.xaxis.type == "log"
    assert "log scale" in figure.layout.xaxis.title.text


def test_a_search_without_runs_says_so(tmp_path: Path) -> None:
    empty = write_capacity(tmp_path).model_copy(update={"runs": []})
    assert style.is_empty(capacity.goodput_against_rate(empty))


def test_pairs_are_turned_so_that_right_is_worse(tmp_path: Path) -> None:
    tier = write_gate(tmp_path, "gate-1", slower=0.2).tiers[2]
    figure = gate.wall_clock(tier)
    dots = _named(figure, "pairs")
    assert dots.name == "pairs (n = 10)"
    assert len(dots.x) == 30
    assert all(14 < x < 27 for x in dots.x)
    failed = _named(figure, "fail")
    assert failed.name == "fail (n = 3)"
    assert all(x == pytest.approx(20, abs=2) for x in failed.x)
    bounds = sorted(shape.x0 for shape in figure.layout.shapes)
    assert bounds == pytest.approx([3.0, 10.0])


def test_pairs_with_odd_numbers_are_left_out(tmp_path: Path) -> None:
    tier = write_gate(tmp_path, "gate-1").tiers[2]
    pairs = [{"ratio": {"itl_ms": 0}}, {"ratio": {"itl_ms": "x"}}, {"ratio": "x"}, 5, {}]
    odd = tier.model_copy(update={"findings": [], "details": {"pairs": pairs}})
    assert style.is_empty(gate.wall_clock(odd))
    assert style.is_empty(gate.wall_clock(odd.model_copy(update={"details": {}})))


def test_history_has_a_panel_a_metric_in_the_order_of_time(tmp_path: Path) -> None:
    first = write_gate(tmp_path, "<b>1", day=1)
    second = write_gate(tmp_path, "gate-2", slower=0.2, day=2)
    figure = gate.history([("<b>1", first), ("gate-2", second)])
    assert list(figure.layout.xaxis.categoryarray) == ["&lt;b&gt;1", "gate-2"]
    assert {t.name.split()[0] for t in figure.data} == {"pass", "fail"}
    fails = [t for t in figure.data if t.name.startswith("fail")]
    assert [t.yaxis for t in fails] == ["y", "y2", "y3"]
    assert all(list(t.x) == ["gate-2"] and t.y[0] == pytest.approx(20, abs=2) for t in fails)
    without = first.model_copy(update={"tiers": first.tiers[:2]})
    assert style.is_empty(gate.history([("gate-1", without)]))


def test_noise_is_drawn_against_the_middle(tmp_path: Path) -> None:
    record = write_self_test(tmp_path)
    figure = gate.noise(record)
    assert [t.name for t in figure.data] == ["TTFT (n = 40)", "ITL (n = 40)"]
    values = sorted(run["ttft_ms"] for run in record.runs)
    assert figure.data[0].y[0] == pytest.approx(100 * (record.runs[0]["ttft_ms"] / values[20] - 1))
    assert style.is_empty(gate.noise(record.model_copy(update={"runs": []})))


def test_blocks_are_coloured_by_who_holds_them() -> None:
    blocks = [Block(1, ("A", "B")), Block(2, ("A",)), Block(3, (), findable=True), Block(4, ())]
    figure = block_pool.pool(blocks, ["A", "B"], columns=2)
    assert [t.name for t in figure.data] == [
        "A (n = 1)",
        "A + B (n = 1)",
        "free, but cached (n = 1)",
        "free (n = 1)",
    ]
    assert (figure.data[0].marker.color, figure.data[1].marker.pattern.shape) == (style.SERIES[0], "/")
    assert figure.data[1].marker.pattern.fgcolor == style.SERIES[1]
    assert [list(t.x) + list(t.base) for t in figure.data] == [
        [1, -0.45],
        [0, -0.45],
        [0, -1.45],
        [1, -1.45],
    ]
    assert style.is_empty(block_pool.pool([], []))


def test_lives_have_a_cell_a_step() -> None:
    marks = [Mark(0, "A", "prefill", 16), Mark(0, "B", "waiting", 0), Mark(1, "A", "decode", 1)]
    figure = block_pool.lives(marks, ["A", "B"], 1)
    assert {t.name for t in figure.data} == {"prefill (n = 1)", "waiting (n = 1)", "decode (n = 1)"}
    assert figure.data[0].text == ("16",)
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (0.5, 1.5)
    assert list(figure.layout.yaxis.categoryarray) == ["B", "A"]
