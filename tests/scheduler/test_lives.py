"""A few random lives; more: ``python -m tests.scheduler``."""

from __future__ import annotations

import pytest

from tests.scheduler.lives import live


@pytest.mark.parametrize("part", range(4))
def test_random_lives(part: int) -> None:
    totals = [live(seed) for seed in range(part, 60, 4)]
    assert sum(preemptions for _, preemptions in totals) > 50
