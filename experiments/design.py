"""The design of a sweep: randomised complete blocks, written down before anything runs.

A block holds every level once and the baseline twice (a built-in A/A). Inside a block all runs get the same
requests (same workload seed and nonce) in an order that is shuffled per block from the recorded seed; the
next block gets new requests. So a drift of the machine falls on all levels alike, and the workload's luck
is part of the interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.models import Cell


def block_seed(seed: int, block: int) -> int:
    """Workload seed of a block: far from that of every other block and sweep seed."""
    return int(np.random.SeedSequence([seed, block]).generate_state(1)[0])


def block_nonce(seed: int, block: int) -> str:
    """Nonce of a block: goes into its prompts, so that no block finds another's prefixes in a cache."""
    return hashlib.sha256(f"{seed}/{block}".encode()).hexdigest()[:12]


def make_schedule(levels: Sequence[Any], baseline: Any, blocks: int, seed: int) -> list[Cell]:
    """All cells of ``blocks`` blocks in running order.

    Args:
        levels: every level of the factor, the baseline among them.
        baseline: the level that each block runs twice.
        seed: decides orders and workloads; the same seed gives the same schedule.
    """
    cells: list[Cell] = []
    for block in range(blocks):
        cells += make_block(levels, baseline, block, seed)
    return cells


def make_block(levels: Sequence[Any], baseline: Any, block: int, seed: int) -> list[Cell]:
    """One block: the baseline twice and the other ``levels`` once, in an order of its own."""
    runs: list[tuple[Any, int | None]] = [(baseline, 0), (baseline, 1)]
    runs += [(level, None) for level in levels if not same_level(level, baseline)]
    return _shuffled(runs, block, seed, "sweep")


def make_pairs(baseline: Any, other: Any, pairs: int, first_block: int, seed: int, phase: str) -> list[Cell]:
    """Pairs (baseline, other) on requests that no other block has seen; ``other`` may be the baseline."""
    copy = 1 if same_level(other, baseline) else None
    cells: list[Cell] = []
    for block in range(first_block, first_block + pairs):
        cells += _shuffled([(baseline, 0), (other, copy)], block, seed, phase)
    return cells


def _shuffled(runs: Sequence[tuple[Any, int | None]], block: int, seed: int, phase: str) -> list[Cell]:
    order = np.random.default_rng([seed, block, 1]).permutation(len(runs))
    return [
        Cell(
            block=block,
            position=position,
            level=runs[index][0],
            baseline_copy=runs[index][1],
            seed=block_seed(seed, block),
            nonce=block_nonce(seed, block),
            phase=phase,
        )
        for position, index in enumerate(order)
    ]


def same_level(a: Any, b: Any) -> bool:
    """Equality that keeps True apart from 1 and False from 0."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def thin(levels: Sequence[Any], baseline: Any, count: int) -> list[Any]:
    """At most ``count`` (two or more) of ``levels``, evenly spaced, both ends and the baseline among them."""
    if len(levels) <= count:
        return list(levels)
    last = len(levels) - 1
    kept = {round(step * last / (count - 1)) for step in range(count)}
    base = next(index for index, level in enumerate(levels) if same_level(level, baseline))
    if base not in kept:
        inner = [index for index in kept if index not in (0, last)] or [last]
        kept.remove(min(inner, key=lambda index: abs(index - base)))
        kept.add(base)
    return [levels[index] for index in sorted(kept)]


def level_text(level: Any) -> str:
    """A level as the user writes it: ``256``, ``on``, ``off``, ``auto``."""
    if isinstance(level, bool):
        return "on" if level else "off"
    return f"{level:g}" if isinstance(level, float) else str(level)
