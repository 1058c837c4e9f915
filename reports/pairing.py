"""Pairs inside a sweep's blocks, read from its cells: the dots under the intervals that the sweep itself
computed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from experiments.metric_info import response
from experiments.models import Cell, Level, SweepResult


@dataclass(frozen=True)
class BlockRatio:
    """One level's metric over the same block's baseline; 1.0 = no change."""

    block: int
    ratio: float


def valid(value: float | None) -> bool:
    """Is there a finite number?"""
    return value is not None and math.isfinite(value)


def level_key(value: Any) -> str:
    """A level as text: the same for the same JSON value (``true`` and ``1`` stay apart)."""
    return value if isinstance(value, str) else json.dumps(value)


def ordered_levels(sweep: SweepResult) -> list[Level]:
    """Levels in the order of the factor: numbers by size, anything else as the sweep lists them."""
    values = [level.value for level in sweep.levels]
    if all(isinstance(value, int | float) for value in values):
        return sorted(sweep.levels, key=lambda level: float(level.value))
    return list(sweep.levels)


def run_order(sweep: SweepResult) -> list[Cell]:
    """Cells of the sweep proper in the order they ran (the confirmation on fresh seeds stands apart)."""
    return sorted(
        (cell for cell in sweep.cells if cell.phase == "sweep"), key=lambda cell: (cell.block, cell.position)
    )


def _baseline_log(sweep: SweepResult, metric: str) -> dict[int, float]:
    """Block → mean log of its baselines (a geometric mean: ratios are compared on the log scale)."""
    logs: dict[int, list[float]] = {}
    for cell in run_order(sweep):
        log = _log(cell, metric)
        if cell.baseline_copy is not None and log is not None:
            logs.setdefault(cell.block, []).append(log)
    return {block: sum(found) / len(found) for block, found in logs.items()}


def _log(cell: Cell, metric: str) -> float | None:
    value = response(metric, cell.metrics) if cell.state == "DONE" else None
    return math.log(value) if value is not None and math.isfinite(value) and value > 0 else None


def block_ratios(sweep: SweepResult, metric: str) -> dict[str, list[BlockRatio]]:
    """Level (as text) → its ratio in every block that has both; the baseline's own two runs against their
    mean.
    """
    base = _baseline_log(sweep, metric)
    found: dict[str, list[BlockRatio]] = {}
    for cell in run_order(sweep):
        log = _log(cell, metric)
        if log is not None and cell.block in base:
            ratio = BlockRatio(cell.block, math.exp(log - base[cell.block]))
            found.setdefault(level_key(cell.level), []).append(ratio)
    return found


def aa_ratios(sweep: SweepResult, metric: str) -> list[BlockRatio]:
    """Second baseline over the first, per block that has both."""
    copies: dict[int, dict[int, float]] = {}
    for cell in run_order(sweep):
        log = _log(cell, metric)
        if cell.baseline_copy is not None and log is not None:
            copies.setdefault(cell.block, {})[cell.baseline_copy] = log
    return [
        BlockRatio(block, math.exp(pair[1] - pair[0]))
        for block, pair in sorted(copies.items())
        if 0 in pair and 1 in pair
    ]
