"""``--search tpe``: which levels does the next block try? Asked of Optuna's sampler, within the same design:
every block still holds the baseline twice, and the response is still the ratio inside the block.

The sampler is rebuilt from the ledger before each block, so an interrupted search goes on as it would have.
What it finds is only a candidate: the pairs on fresh seeds decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.analysis import block_table, counted
from experiments.design import level_text, same_level
from experiments.metric_info import metric_info
from experiments.models import Cell
from experiments.spec import SweepSpec

_DIGITS = 2
"""Levels are rounded to so many significant digits, so that good ones come up again."""


def measured_levels(spec: SweepSpec, cells: Sequence[Cell]) -> list[Any]:
    """Every level that was planned so far and the baseline, in ascending order."""
    found: list[Any] = [spec.baseline]
    for cell in cells:
        if cell.phase == "sweep" and not any(same_level(cell.level, seen) for seen in found):
            found.append(cell.level)
    return sorted(found)


def propose(spec: SweepSpec, cells: Sequence[Cell], count: int) -> list[Any]:
    """``count`` levels for the next block, none of them the baseline or twice."""
    import optuna

    if spec.search_range is None:
        raise ValueError("a search needs a range")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    low, high = spec.search_range
    whole = isinstance(low, int) and isinstance(high, int)
    log = low > 0
    space: optuna.distributions.BaseDistribution = (
        optuna.distributions.IntDistribution(int(low), int(high), log=log)
        if whole
        else optuna.distributions.FloatDistribution(float(low), float(high), log=log)
    )
    # Everything that a change of Optuna's defaults could change is said here.
    sampler = optuna.samplers.TPESampler(
        seed=spec.seed, n_startup_trials=0, multivariate=False, constant_liar=True, n_ei_candidates=24
    )
    study = optuna.create_study(sampler=sampler, direction="minimize")
    for level, value in history(spec, cells):
        study.add_trial(
            optuna.trial.create_trial(
                params={spec.factor: level}, distributions={spec.factor: space}, value=value
            )
        )
    chosen: list[Any] = []
    for _ in range(20 * count):
        trial = study.ask({spec.factor: space})
        level = _round(trial.params[spec.factor], whole, low, high)
        if not any(same_level(level, seen) for seen in [spec.baseline, *chosen]):
            chosen.append(level)
        if len(chosen) == count:
            break
    return chosen


def history(spec: SweepSpec, cells: Sequence[Cell]) -> list[tuple[Any, float]]:
    """(level, log ratio to its block's baseline, less is better) of every run so far."""
    info = metric_info(spec.primary_metric)
    sign = -1.0 if info is not None and info.higher_is_better else 1.0
    done = counted(cells)
    table = block_table(done, spec.primary_metric, spec.baseline)
    levels = {level_text(cell.level): cell.level for cell in done}
    found: list[tuple[Any, float]] = [
        (level, sign * value)
        for name, level in levels.items()
        if not same_level(level, spec.baseline)
        for value in table.ratios(level)
    ]
    return [*found, (spec.baseline, 0.0)] if found else []


def best_candidate(spec: SweepSpec, cells: Sequence[Cell]) -> Any | None:
    """The level with the best mean, shrunk towards none by one run's worth: once lucky is not enough."""
    sums: dict[str, tuple[Any, float, int]] = {}
    for level, value in history(spec, cells):
        _, total, count = sums.get(level_text(level), (level, 0.0, 0))
        sums[level_text(level)] = (level, total + value, count + 1)
    ranked = sorted(sums.values(), key=lambda item: item[1] / (item[2] + 1))
    if not ranked or ranked[0][1] >= 0:
        return None
    return ranked[0][0]


def _round(value: float, whole: bool, low: float, high: float) -> Any:
    if value:
        digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
        value = round(value, digits)
    value = min(max(value, low), high)
    return int(value) if whole else float(value)
