"""Random scenarios, each request token-identical to its solo run. More: ``python -m tests.differential``."""

from __future__ import annotations

import pytest

from tests.differential.backends import BACKENDS
from tests.differential.runner import Tally, run_scenario

SCENARIOS = {"reference": 500, "cpu": 200}
PARTS = 4
TRITON_SEEDS = (123, 136)
"""Few: a launch takes milliseconds in Triton's interpreter. Together they preempt, abort, hit the cache."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", sorted(SCENARIOS))
def test_no_token_differs_from_the_solo_run(backend: str, part: int) -> None:
    new_backend, tally = BACKENDS[backend](), Tally()
    for seed in range(part, SCENARIOS[backend], PARTS):
        run_scenario(seed, new_backend, tally)
    assert tally.mismatches == []
    # The scenarios really do what they are for.
    assert tally.preemptions > 20
    assert tally.prefix_hit_tokens > 100
    assert tally.aborted > 3


def test_the_triton_backend_in_two_scenarios() -> None:
    new_backend, tally = BACKENDS["triton"](), Tally()
    for seed in TRITON_SEEDS:
        run_scenario(seed, new_backend, tally)
    assert tally.mismatches == []
    assert (tally.preemptions, tally.aborted, tally.tokens) == (3, 2, 29)
    assert tally.prefix_hit_tokens > 0
