"""From finished cells to levels with ratios and verdicts. Pure: cells in, records out; nothing is read or
written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from experiments.design import level_text, same_level
from experiments.metric_info import metric_info, response
from experiments.models import Cell, Confirmation, Drift, Level, Ratio, Verdict
from experiments.spec import SweepSpec
from experiments.stats import (
    RANK_BLOCKS,
    Spread,
    holm,
    interval,
    judge,
    minimum_detectable_effect,
    pooled_sd,
    residual_spread,
    trend,
)


@dataclass(frozen=True)
class BlockTable:
    """Logarithms of one metric: per block the baseline copies and the other levels (None: no counted run)."""

    baselines: list[list[float]]
    levels: list[dict[str, float]]
    """Per block: level (as text) to its log."""

    def ratios(self, level: Any) -> list[float]:
        """ln(level / mean baseline of the same block), for the blocks that have both."""
        name = level_text(level)
        return [
            row[name] - fmean(baselines)
            for baselines, row in zip(self.baselines, self.levels, strict=True)
            if baselines and name in row
        ]

    def spread(self) -> Spread | None:
        """Of one run about its block and level, from all runs of the table."""
        runs = [(b, "", log) for b, logs in enumerate(self.baselines) for log in logs]
        runs += [(b, name, log) for b, row in enumerate(self.levels) for name, log in row.items()]
        return residual_spread(runs)

    def ratio_spread(self, level: Any) -> Spread | None:
        """Of ``level``'s log ratios: its run, and the baseline's share by the number of its copies."""
        spread, name = self.spread(), level_text(level)
        copies = [len(b) for b, row in zip(self.baselines, self.levels, strict=True) if b and name in row]
        return spread.times(1.0 + fmean(1.0 / n for n in copies)) if spread and copies else None

    def aa(self) -> list[float]:
        """ln(second baseline / first) of the blocks that have both."""
        return [pair[1] - pair[0] for pair in self.baselines if len(pair) == 2]


def counted(cells: Sequence[Cell], phase: str = "sweep") -> list[Cell]:
    return [cell for cell in cells if cell.state == "DONE" and cell.phase == phase]


def block_table(cells: Sequence[Cell], metric: str, baseline: Any) -> BlockTable:
    """Arrange the counted ``cells`` by block; copies of the baseline keep their number's order."""
    blocks: dict[int, list[Cell]] = {}
    for cell in cells:
        blocks.setdefault(cell.block, []).append(cell)
    baselines: list[list[float]] = []
    levels: list[dict[str, float]] = []
    for block in sorted(blocks):
        copies: list[tuple[int, float]] = []
        row: dict[str, float] = {}
        for cell in blocks[block]:
            value = response(metric, cell.metrics)
            if value is None:
                continue
            if cell.baseline_copy is not None and same_level(cell.level, baseline):
                copies.append((cell.baseline_copy, math.log(value)))
            else:
                row[level_text(cell.level)] = math.log(value)
        baselines.append([value for _copy, value in sorted(copies)])
        levels.append(row)
    return BlockTable(baselines, levels)


def metric_names(cells: Sequence[Cell]) -> list[str]:
    """Metrics with a better side that some counted run has a number for, in a stable order."""
    names = {name for cell in cells for name, value in cell.metrics.items() if value is not None}
    return sorted(name for name in names if metric_info(name) is not None)


def make_ratio(
    logs: Sequence[float],
    metric: str,
    spec: SweepSpec,
    *,
    p_adjusted: float | None = None,
    flagged: bool = False,
    known: Spread | None = None,
) -> Ratio:
    """Point, 95 % interval and verdict of log ratios, one a block; ``known``: their spread by the whole
    design."""
    info = metric_info(metric)
    if info is None:
        raise ValueError(f"{metric} has no better side")
    verdict, reason = judge(
        logs,
        higher_is_better=info.higher_is_better,
        delta=spec.delta,
        alpha=spec.alpha,
        p_adjusted=p_adjusted,
        known=known,
    )
    estimate = interval(logs, 1.0 - spec.alpha, known)
    if flagged:
        reason += "; a tail of few samples"
    point = math.exp(estimate.point) if estimate else (math.exp(logs[0]) if logs else None)
    low, high = (_finite_exp(estimate.low), _finite_exp(estimate.high)) if estimate else (None, None)
    p = (p_adjusted if p_adjusted is not None else estimate.p) if estimate else None
    return Ratio(
        point=point,
        low=low,
        high=high,
        n_blocks=len(logs),
        verdict=verdict,
        reason=reason,
        p_value=p,
        flagged=flagged,
    )


def _finite_exp(x: float) -> float | None:
    return math.exp(x) if math.isfinite(x) else None


def compare_levels(spec: SweepSpec, cells: Sequence[Cell], failures: Mapping[str, str]) -> list[Level]:
    """Every level against the baseline on every metric; p-values Holm-adjusted over the levels of a metric.

    Args:
        cells: all cells of the sweep phase, whatever their state.
        failures: level (as text) to the reason why the target can't run it.
    """
    done = counted(cells)
    others = [level for level in spec.levels if not same_level(level, spec.baseline)]
    ratios: dict[str, dict[str, Ratio]] = {level_text(level): {} for level in spec.levels}
    for metric in metric_names(done):
        table = block_table(done, metric, spec.baseline)
        logs = {level_text(level): table.ratios(level) for level in others}
        known = {level_text(level): table.ratio_spread(level) for level in others}
        estimates = {name: interval(values, 1.0 - spec.alpha, known[name]) for name, values in logs.items()}
        tested = [name for name, estimate in estimates.items() if estimate is not None]
        adjusted = dict(zip(tested, holm([e.p for e in estimates.values() if e is not None]), strict=True))
        for name, values in logs.items():
            flagged = any(metric in c.flagged for c in done if level_text(c.level) == name)
            ratios[name][metric] = make_ratio(
                values, metric, spec, p_adjusted=adjusted.get(name), flagged=flagged, known=known[name]
            )
        ratios[level_text(spec.baseline)][metric] = Ratio(
            point=1.0, low=1.0, high=1.0, n_blocks=sum(1 for b in table.baselines if b),
            verdict=Verdict.BASELINE, flagged=any(metric in c.flagged for c in done if same_level(c.level,
            spec.baseline)),
        )  # fmt: skip
    levels = []
    for level in spec.levels:
        name = level_text(level)
        mine = [cell for cell in done if same_level(cell.level, level)]
        ratio = ratios[name]
        if name in failures:
            verdict = Verdict.FAILED
        elif same_level(level, spec.baseline):
            verdict = Verdict.BASELINE
        else:
            verdict = (
                ratio[spec.primary_metric].verdict if spec.primary_metric in ratio else Verdict.INCONCLUSIVE
            )
        levels.append(
            Level(
                value=level,
                runs=[c.run for c in mine if c.run],
                medians=_medians(mine),
                ratio=ratio,
                verdict=verdict,
                failed=failures.get(name, ""),
            )
        )
    return levels


def _medians(cells: Sequence[Cell]) -> dict[str, float | None]:
    names = sorted({name for cell in cells for name in cell.metrics})
    out: dict[str, float | None] = {}
    for name in names:
        values = [value for cell in cells if (value := cell.metrics.get(name)) is not None]
        out[name] = median(values) if values else None
    return out


def aa_ratio(spec: SweepSpec, cells: Sequence[Cell]) -> Ratio:
    """The two baselines of each block against each other: what "no change" looks like here."""
    table = block_table(counted(cells), spec.primary_metric, spec.baseline)
    spread = table.spread()
    return make_ratio(table.aa(), spec.primary_metric, spec, known=spread.times(2.0) if spread else None)


def detectable_effect(spec: SweepSpec, cells: Sequence[Cell]) -> float | None:
    """Effect that this sweep would have seen 9 times in 10, from the spread of its own log ratios."""
    table = block_table(counted(cells), spec.primary_metric, spec.baseline)
    samples = [table.ratios(level) for level in spec.levels if not same_level(level, spec.baseline)]
    blocks = min((len(sample) for sample in samples if len(sample) >= 2), default=0)
    sd, spread = pooled_sd(samples), table.spread()
    degrees = spread.degrees if spread and blocks < RANK_BLOCKS else None
    return minimum_detectable_effect(
        sd, blocks, alpha=spec.alpha, comparisons=max(1, len(samples)), degrees=degrees
    )


def baseline_drift(spec: SweepSpec, cells: Sequence[Cell]) -> Drift:
    """Trend of the baseline runs over the order in which they ran."""
    mine = [c for c in counted(cells) if same_level(c.level, spec.baseline)]
    points = [
        (float(c.block * spec.runs_per_block + c.position), math.log(value))
        for c in mine
        if (value := response(spec.primary_metric, c.metrics)) is not None
    ]
    fit = trend([x for x, _ in points], [y for _, y in points])
    if fit is None:
        return Drift(total=None, p_value=None, text="too few baseline runs for a trend")
    total = math.expm1(fit.total)
    seen = "significant; blocks cancel it out of the ratios" if fit.p <= spec.alpha else "not significant"
    text = f"the baseline's {spec.primary_metric} moved {total:+.1%} over the sweep (p = {fit.p:.2g}, {seen})"
    return Drift(total=total, p_value=fit.p, text=text)


def confirmation(spec: SweepSpec, level: Any, cells: Sequence[Cell]) -> Confirmation | None:
    """The winner against the baseline in the fresh pairs; None when none was run.

    The pairs are few: their noise is taken to be at least that of the sweep's own runs.
    """
    done = counted(cells, "confirm")
    ratio = pair_ratios(spec, level, done, cells)
    if spec.primary_metric not in ratio:
        return None
    runs = [c.run for c in done if c.run]
    return Confirmation(level=level, ratio=ratio, runs=runs, verdict=ratio[spec.primary_metric].verdict)


def pair_ratios(spec: SweepSpec, level: Any, done: Sequence[Cell], cells: Sequence[Cell]) -> dict[str, Ratio]:
    """``level`` over the baseline in the pairs ``done``, every metric; ``cells``: whose noise they share."""
    ratio = {}
    for metric in metric_names(done):
        logs = block_table(done, metric, spec.baseline).ratios(level)
        spread = block_table(counted(cells), metric, spec.baseline).spread()
        ratio[metric] = make_ratio(
            logs, metric, spec, flagged=any(metric in c.flagged for c in done),
            known=spread.times(2.0) if spread else None,
        )  # fmt: skip
    return ratio
