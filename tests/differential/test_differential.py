"""Random scenarios, each request token-identical to its solo run. More: ``python -m tests.differential``."""

from __future__ import annotations

import pytest

from tests.differential.backends import BACKENDS
from tests.differential.runner import Tally, run_scenario

SEEDS = {"reference": range(500), "cpu": range(200), "triton": (*range(14, 26), 36, 40)}
"""Few for Triton: a program takes milliseconds in its interpreter."""
PARTS = {"reference": 4, "cpu": 4, "triton": 2}
COVERED = {"reference": (20, 100, 3), "cpu": (20, 100, 3), "triton": (3, 5, 2)}
"""Preemptions, tokens from the prefix cache and aborted requests: each part has more of them."""


@pytest.mark.parametrize(("backend", "part"), [(name, part) for name in PARTS for part in range(PARTS[name])])
def test_no_token_differs_from_the_solo_run(backend: str, part: int) -> None:
    arithmetic, tally = BACKENDS[backend](), Tally()
    for seed in SEEDS[backend][part :: PARTS[backend]]:
        run_scenario(seed, arithmetic, tally)
    assert tally.mismatches == []
    # The scenarios really do what they are for.
    preemptions, prefix_hit_tokens, aborted = COVERED[backend]
    assert tally.preemptions > preemptions
    assert tally.prefix_hit_tokens > prefix_hit_tokens
    assert tally.aborted > aborted
