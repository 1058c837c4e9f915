"""Output equivalence: inside a block every level got the same requests, so it should have given the same
tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.design import level_text
from experiments.ledger import CellKey, cell_key
from experiments.models import Cell, Equivalence

AGAIN = "baseline again"
TOLERATED = 0.02
"""Share of divergent requests that near-ties between two tokens may explain; more, and more than twice what
the baseline shows against itself, is a difference."""


def compare_outputs(cells: Sequence[Cell], outputs: Mapping[CellKey, Mapping[str, str]]) -> Equivalence:
    """Compare each run's outputs with the first baseline of its block, request by request.

    Args:
        cells: cells that ran, of any phase.
        outputs: per cell, request index to the hash of its output tokens.
    """
    reference: dict[int, Mapping[str, str]] = {}
    for cell in sorted(cells, key=lambda c: (c.baseline_copy is None, c.baseline_copy or 0)):
        found = outputs.get(cell_key(cell))
        if found and cell.baseline_copy is not None and cell.block not in reference:
            reference[cell.block] = found
    counts: dict[str, tuple[int, int]] = {}
    for cell in cells:
        mine, theirs = outputs.get(cell_key(cell), {}), reference.get(cell.block, {})
        if mine is theirs or not mine:
            continue
        name = AGAIN if cell.baseline_copy is not None else level_text(cell.level)
        shared = mine.keys() & theirs.keys()
        equal = sum(1 for index in shared if mine[index] == theirs[index])
        compared, identical = counts.get(name, (0, 0))
        counts[name] = (compared + len(shared), identical + equal)
    compared = sum(pair[0] for pair in counts.values())
    identical = sum(pair[1] for pair in counts.values())
    return Equivalence(
        compared=compared, identical=identical, note=_note(counts, compared, identical), per_level=counts
    )


def _note(counts: Mapping[str, tuple[int, int]], compared: int, identical: int) -> str:
    if compared == 0:
        return "no two runs of a block could be compared"
    if compared == identical:
        return "every level gave the same tokens for the same requests"
    parts = [f"{name}: {total - same} of {total}" for name, (total, same) in counts.items() if same < total]
    where = ", ".join(parts)
    return f"{compared - identical} of {compared} requests differ from the baseline's tokens ({where})"


def divergent_levels(found: Equivalence) -> list[str]:
    """Levels whose outputs differ more than near-ties and the baseline's own repeat explain."""
    total, same = found.per_level.get(AGAIN, (0, 0))
    own = (total - same) / total if total else 0.0
    bound = max(TOLERATED, 2.0 * own)
    return [
        name
        for name, (compared, identical) in found.per_level.items()
        if name != AGAIN and compared and (compared - identical) / compared > bound
    ]
