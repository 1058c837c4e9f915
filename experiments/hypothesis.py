"""Did the expectation hold? Judged from the same blocks as the verdicts, by one test of a monotone trend
per line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.analysis import block_table, counted
from experiments.design import level_text, same_level
from experiments.factors import FactorExpectation
from experiments.models import Cell, Expectation
from experiments.spec import SweepSpec
from experiments.stats import Spread, interval, within_block_slopes


def judge_hypothesis(spec: SweepSpec, cells: Sequence[Cell]) -> list[Expectation]:
    """Every line of the pre-registered hypothesis with held = True, False or None (the data can't tell)."""
    return [_judge_line(spec, line, cells) for line in spec.hypothesis]


def _judge_line(spec: SweepSpec, line: FactorExpectation, cells: Sequence[Cell]) -> Expectation:
    """A contrast: per block the slope of the metric's log over the levels' order, times the number of steps.

    "up" and "down" hold when the interval of that trend over the blocks lies on the expected side of "no
    change"; they fail when it lies on the other. "none" holds when the 90 % interval stays inside the
    effect of interest.
    """
    levels, rows = _complete_rows(spec, line.metric, cells)
    steps = len(levels) - 1
    trends = [slope * steps for slope in within_block_slopes(range(len(levels)), rows)]
    known = _trend_spread(spec, line.metric, cells, levels)
    outer = interval(trends, 1.0 - spec.alpha, known)
    inner = interval(trends, 1.0 - 2.0 * spec.alpha, known)
    if outer is None or inner is None:
        held, evidence = None, f"{len(rows)} complete block{'' if len(rows) == 1 else 's'}: no trend to test"
    else:
        span = f"{level_text(levels[0])} → {level_text(levels[-1])}"
        low, high = math.exp(outer.low), math.exp(outer.high)
        evidence = f"{span}: ×{math.exp(outer.point):.2f} [{low:.2f}, {high:.2f}] over {len(rows)} blocks"
        margin = math.log1p(spec.delta)
        no_change = -margin < inner.low and inner.high < margin
        if line.direction == "none":
            changed = outer.low > margin or outer.high < -margin
            held = True if no_change else (False if changed else None)
        elif outer.low > 0 or outer.high < 0:
            held = (outer.low > 0) == (line.direction == "up")
        else:
            held = False if no_change else None
    return Expectation(
        metric=line.metric, direction=line.direction, text=line.text, held=held, evidence=evidence
    )


def _trend_spread(
    spec: SweepSpec, metric: str, cells: Sequence[Cell], levels: Sequence[object]
) -> Spread | None:
    """Of one block's trend, from the residual of the whole design: the baseline is a mean of two runs."""
    spread = block_table(counted(cells), metric, spec.baseline).spread()
    if spread is None or len(levels) < 2:
        return None
    middle, steps = (len(levels) - 1) / 2, len(levels) - 1
    scale = sum((rank - middle) ** 2 for rank in range(len(levels)))
    weights = [(rank - middle) * steps / scale for rank in range(len(levels))]
    runs = [2 if same_level(level, spec.baseline) else 1 for level in levels]
    return spread.times(sum(weight**2 / n for weight, n in zip(weights, runs, strict=True)))


def _complete_rows(
    spec: SweepSpec, metric: str, cells: Sequence[Cell]
) -> tuple[list[object], list[list[float]]]:
    """Levels that ran, in order, and per block their logs; blocks in which one of them is missing are left
    out."""
    table = block_table(counted(cells), metric, spec.baseline)
    measured = {name for row in table.levels for name in row}
    levels = [
        level for level in spec.levels if level_text(level) in measured or same_level(level, spec.baseline)
    ]
    rows = []
    for baselines, row in zip(table.baselines, table.levels, strict=True):
        values = [
            sum(baselines) / len(baselines)
            if same_level(level, spec.baseline) and baselines
            else row.get(level_text(level))
            for level in levels
        ]
        complete = [value for value in values if value is not None]
        if len(complete) == len(levels) >= 2:
            rows.append(complete)
    return levels, rows
