"""What comes before and after the blocks of a sweep: the pilot, the winner on fresh seeds, the gain along an
axis. Plans and verdicts only; :class:`experiments.sweep.Sweep` runs the cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments import analysis
from experiments.conclusion import change_text, effect_text
from experiments.design import level_text, make_pairs
from experiments.models import AcrossPoint, Cell, Pilot, Verdict
from experiments.spec import SweepSpec
from experiments.stats import minimum_detectable_effect

TYPICAL_SD = 0.04
"""Of a log ratio between neighbouring runs on a shared 2-core machine with nothing else running."""
PILOT_BLOCK = 100_000
ACROSS_BLOCK = 200_000
"""Blocks of these phases are numbered from here, so that no two runs of different requests share a number."""


def pilot_cells(spec: SweepSpec) -> list[Cell]:
    """Pairs of the baseline with itself."""
    return make_pairs(spec.baseline, spec.baseline, spec.pilot_pairs, PILOT_BLOCK, spec.seed, "pilot")


def judge_pilot(spec: SweepSpec, cells: Sequence[Cell], blocks: int) -> Pilot | None:
    """What the sweep will be able to see, from the pairs of the pilot.

    Args:
        blocks: that the budget holds.
    """
    table = analysis.block_table(analysis.counted(cells, "pilot"), spec.primary_metric, spec.baseline)
    logs = table.aa()
    if len(logs) < 2:
        return None
    # A pair differs by two runs' noise; a level's ratio by its own and half of that of the two baselines.
    sd = math.sqrt(sum(x * x for x in logs) / len(logs) / 2.0)
    mde = minimum_detectable_effect(
        sd * math.sqrt(1.5), blocks, alpha=spec.alpha, comparisons=max(1, len(spec.levels) - 1),
        degrees=spec.residual_degrees(blocks),
    )  # fmt: skip
    text = f"pilot: {len(logs)} pairs, noise {sd:.1%} between runs; in {_blocks(blocks)} {effect_text(mde)}"
    return Pilot(pairs=len(logs), sd=sd, blocks=blocks, mde=mde, text=text)


def expected_text(spec: SweepSpec, blocks: int) -> str:
    """Without a pilot: what the sweep would see with a typical machine's noise. Said before it begins."""
    mde = minimum_detectable_effect(
        TYPICAL_SD, blocks, alpha=spec.alpha, comparisons=max(1, len(spec.levels) - 1),
        degrees=spec.residual_degrees(blocks),
    )  # fmt: skip
    return f"no pilot; with {TYPICAL_SD:.0%} noise between runs, in {_blocks(blocks)} {effect_text(mde)}"


def across_cells(spec: SweepSpec, winner: Any) -> list[Cell]:
    """Pairs (baseline, winner) at every value of the axis."""
    cells: list[Cell] = []
    if spec.across is None:
        return cells
    for index, value in enumerate(spec.across.values):
        first = ACROSS_BLOCK + index * 1000
        pairs = make_pairs(spec.baseline, winner, spec.across.pairs, first, spec.seed, "across")
        cells += [cell.model_copy(update={"at": value}) for cell in pairs]
    return cells


@dataclass(frozen=True)
class Across:
    """The gain along the axis, point by point, and in words."""

    points: list[AcrossPoint]
    text: str


def judge_across(spec: SweepSpec, cells: Sequence[Cell]) -> Across | None:
    """Where the winner's gain holds, vanishes or reverses; None when nothing was run."""
    done = analysis.counted(cells, "across")
    if spec.across is None or not done:
        return None
    winner = next(cell.level for cell in cells if cell.phase == "across" and cell.baseline_copy is None)
    points = []
    for value in spec.across.values:
        mine = [cell for cell in done if cell.at == value]
        # Pairs of one value only: at another rate the noise is another one too.
        ratio = analysis.pair_ratios(spec, winner, mine, [])
        primary = ratio.get(spec.primary_metric)
        points.append(
            AcrossPoint(
                value=value, ratio=ratio, runs=[c.run for c in mine if c.run],
                verdict=primary.verdict if primary else Verdict.INCONCLUSIVE,
            )
        )  # fmt: skip
    return Across(points, _across_text(spec, winner, points))


def _across_text(spec: SweepSpec, winner: Any, points: Sequence[AcrossPoint]) -> str:
    words = {
        Verdict.BETTER: "holds",
        Verdict.EQUIVALENT: "vanishes",
        Verdict.WORSE: "reverses",
        Verdict.INCONCLUSIVE: "is not known",
    }
    axis = spec.across.axis if spec.across else ""
    parts = []
    for verdict, word in words.items():
        mine = [
            f"{level_text(p.value)} ({change_text(p.ratio[spec.primary_metric])})"
            if spec.primary_metric in p.ratio
            else level_text(p.value)
            for p in points
            if p.verdict is verdict
        ]
        if mine:
            parts.append(f"{word} at {', '.join(mine)}")
    base = level_text(spec.baseline)
    return f"Along {axis}, the gain of {level_text(winner)} over {base} {'; '.join(parts)}."


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"
