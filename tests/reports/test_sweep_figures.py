"""Figures of a sweep: every number drawn is checked against one computed here from the cells."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from experiments.models import Ratio, SweepResult, Verdict
from reports.figures import noise, pareto, ratio_axis, style
from reports.figures import sweep as figures
from reports.pairing import aa_ratios, block_ratios, ordered_levels, run_order


def _expected(sweep: SweepResult, metric: str, level: int, block: int) -> float:
    base = [c.metrics[metric] for c in sweep.cells if c.block == block and c.baseline_copy is not None]
    value = next(c.metrics[metric] for c in sweep.cells if c.block == block and c.level == level)
    return value / statistics.geometric_mean([b for b in base if b is not None])


@pytest.mark.parametrize("metric", ["itl_p99", "ttft_p50", "output_tok_s"])
def test_dots_are_ratios_to_the_same_blocks_baseline(sweep: SweepResult, metric: str) -> None:
    for level in (64, 128, 512, 1024):
        for dot in block_ratios(sweep, metric)[str(level)]:
            assert dot.ratio == pytest.approx(_expected(sweep, metric, level, dot.block))


def test_aa_is_the_second_baseline_over_the_first(sweep: SweepResult) -> None:
    for pair in aa_ratios(sweep, "itl_p99"):
        copies = {c.baseline_copy: c.metrics["itl_p99"] for c in sweep.cells if c.block == pair.block}
        assert pair.ratio == pytest.approx(copies[1] / copies[0])  # type: ignore[operator]


def test_failed_and_confirmation_cells_are_no_pairs(sweep: SweepResult) -> None:
    cells = [
        c.model_copy(
            update={"state": "FAILED"}
            if c.level == 64 and c.block == 0
            else {"phase": "confirm"}
            if c.block == 1
            else {}
        )
        for c in sweep.cells
    ]
    changed = sweep.model_copy(update={"cells": cells})
    assert [d.block for d in block_ratios(changed, "itl_p99")["64"]] == [2, 3]
    assert all(c.block != 1 for c in run_order(changed))


def test_response_draws_dots_interval_and_verdict_of_every_level(sweep: SweepResult) -> None:
    figure = figures.response(sweep, ["itl_p99"])
    dots = {t.name: list(t.x) for t in figure.data if t.name and t.name.endswith(": blocks")}
    assert set(dots) == {f"{v}: blocks" for v in (64, 128, 256, 512, 1024)}
    assert dots["64: blocks"] == [d.ratio for d in block_ratios(sweep, "itl_p99")["64"]]
    points = {t.y[0]: t for t in figure.data if t.error_x.array is not None}
    for level in sweep.levels:
        ratio = level.ratio["itl_p99"]
        if ratio.verdict is Verdict.BASELINE:
            assert str(level.value) not in points
            continue
        mark = points[str(level.value)]
        assert mark.x[0] == ratio.point
        assert mark.x[0] + mark.error_x.array[0] == pytest.approx(ratio.high)
        assert mark.x[0] - mark.error_x.arrayminus[0] == pytest.approx(ratio.low)
        assert mark.name == f"{ratio.verdict.lower()} (n = {ratio.n_blocks} blocks)"
    lines = sorted(s.x0 for s in figure.layout.shapes if s.type == "line")
    assert lines == pytest.approx([1 / 1.05, 1.0, 1.05])
    band = next(s for s in figure.layout.shapes if s.type == "rect")
    assert (band.x0, band.x1) == (sweep.aa.low, sweep.aa.high)


def test_response_axis_holds_everything_it_draws(sweep: SweepResult) -> None:
    figure = figures.response(sweep)
    for axis in range(1, 6):
        low, high = (10**v for v in figure.layout["xaxis" if axis == 1 else f"xaxis{axis}"].range)
        name = "x" if axis == 1 else f"x{axis}"
        drawn = [x for t in figure.data if (t.xaxis or "x") == name for x in t.x]
        assert low < min(drawn)
        assert max(drawn) < high


def test_response_without_numbers_still_draws(sweep: SweepResult) -> None:
    gone = Ratio(
        point=None, low=None, high=None, n_blocks=0, verdict=Verdict.INCONCLUSIVE, reason="no blocks"
    )
    levels = [
        v.model_copy(update={"ratio": dict.fromkeys(v.ratio, gone), "medians": {}}) for v in sweep.levels
    ]
    bare = sweep.model_copy(update={"levels": levels, "cells": [], "aa": gone, "mde": None})
    assert not style.is_empty(figures.response(bare))
    for figure in (figures.levels(bare), noise.aa_and_drift(bare), pareto.pareto(bare)):
        assert style.is_empty(figure)
        assert figure.layout.annotations[0].text
    assert style.is_empty(figures.response(sweep.model_copy(update={"levels": []})))


def test_levels_draw_every_run_and_the_stored_medians(sweep: SweepResult) -> None:
    figure = figures.levels(sweep, ["itl_p99", "output_tok_s"])
    runs, medians = figure.data[0], figure.data[1]
    assert len(runs.x) == len(sweep.cells)
    assert list(medians.y) == [v.medians["itl_p99"] for v in ordered_levels(sweep)]
    assert runs.name == f"run (n = {len(sweep.cells)})"
    assert {figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text} == {"ms", "tok/s"}


def test_drift_shows_every_run_once_in_its_order(sweep: SweepResult) -> None:
    figure = noise.aa_and_drift(sweep)
    others, baseline = figure.data[1], figure.data[2]
    assert sorted([*others.x, *baseline.x]) == list(range(1, len(sweep.cells) + 1))
    assert len(baseline.x) == 8
    in_order = [c.metrics["itl_p99"] for c in run_order(sweep)]
    assert [in_order[i - 1] for i in baseline.x] == list(baseline.y)
    assert list(figure.data[0].y) == [p.ratio for p in aa_ratios(sweep, "itl_p99")]


def test_frontier_holds_exactly_the_levels_nobody_beats(sweep: SweepResult) -> None:
    figure = pareto.pareto(sweep)
    points = [(v.medians["ttft_p50"] or 0, v.medians["output_tok_s"] or 0) for v in sweep.levels]
    best = {p for p in points if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in points)}
    front = figure.data[1]
    assert set(zip(front.x, front.y, strict=True)) == best


def test_ticks_are_apart_and_hold_zero_change() -> None:
    ticks = ratio_axis.spread((0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5), math.log(2.0))
    assert 1.0 in ticks
    assert np.diff(np.log(ticks)).min() > math.log(2.0) / 5


def test_an_absurd_interval_does_not_squeeze_the_dots() -> None:
    low, high = ratio_axis.limits([0.8, 1.3], [1e-11, 1e12, None], 0.05)
    assert 0.3 < low < 0.8
    assert 1.3 < high < 4.0
    low, high = ratio_axis.limits([0.8, 1.3], [0.7, 1.5], 0.05)
    assert low < 0.7
    assert high > 1.5
    values, labels = ratio_axis.ticks(0.9, 12.0)
    assert (labels[values.index(1.0)], labels[-1]) == ("0 %", "×10")
