"""The parts of a sweep's design that the command line asks for by word: axis, search, pilot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import InvalidInputError
from experiments.calibrate import affordable_runs
from experiments.design import same_level, thin
from experiments.factors import Factor
from experiments.spec import AcrossSpec, parse_rate
from workloads import WorkloadError, load_workload

SEARCH_LEVELS = 4
"""Levels in a block of a search, the baseline among them."""
MOST_PILOT_PAIRS = 4
PILOT_SHARE = 0.1
"""Of the runs that a design or a budget holds, the most that a pilot may take by itself."""


def parse_across(text: str | None, pairs: int = 3) -> AcrossSpec | None:
    """``rate=0.5,1,2`` or ``workload=chat,shared-prefix``.

    Raises:
        InvalidInputError: another axis, no values, a rate or workload that can't be used.
    """
    if text is None:
        return None
    axis, _, rest = text.partition("=")
    words = [word.strip() for word in rest.split(",") if word.strip()]
    if not words:
        raise InvalidInputError("across", text, "rate=1,2,4 or workload=chat,shared-prefix")
    if axis == "rate":
        return AcrossSpec(axis="rate", values=[parse_rate(word) for word in words], pairs=pairs)
    if axis == "workload":
        workloads = {}
        for word in words:
            try:
                workloads[word] = load_workload(word).model_dump(mode="json")
            except WorkloadError as error:
                raise InvalidInputError("across", error.value, error.allowed) from None
        return AcrossSpec(axis="workload", values=words, workloads=workloads, pairs=pairs)
    raise InvalidInputError("across", axis, "rate or workload")


def search_design(
    factor: Factor, levels: Sequence[Any], baseline: Any
) -> tuple[list[Any], tuple[float, float] | tuple[int, int]]:
    """First block and range of ``--search tpe``: the levels' ends are the range's.

    Raises:
        InvalidInputError: the factor has no numbers to search between.
    """
    numbers = [level for level in levels if isinstance(level, (int, float)) and not isinstance(level, bool)]
    if len(numbers) != len(levels) or (factor.zero_is_unlimited and 0 in numbers):
        raise InvalidInputError(
            "search", factor.name, "levels that are plain numbers: give them with --values"
        )
    if not same_level(min(numbers), min([*numbers, baseline])) or len(numbers) < 3:
        raise InvalidInputError("search", factor.name, "at least three levels")
    return thin(sorted(numbers), baseline, SEARCH_LEVELS), (min(numbers), max(numbers))


def pilot_pairs(asked: int | None, runs_per_block: int, blocks: int, budget_s: float | None) -> int:
    """As asked; by itself a tenth of the runs, or none when that would be less than two pairs."""
    if asked is not None:
        if asked < 0 or asked == 1:
            raise InvalidInputError("pilot", asked, "0 (none), or at least 2 pairs")
        return asked
    runs = runs_per_block * blocks if budget_s is None else affordable_runs(budget_s)
    pairs = min(MOST_PILOT_PAIRS, int(PILOT_SHARE * runs) // 2)
    return pairs if pairs >= 2 else 0
