"""Random scenarios, each request token-identical to its solo run. More: ``python -m tests.differential``."""

from __future__ import annotations

import pytest

from tests.differential.backends import BACKENDS
from tests.differential.runner import Tally, run_scenario

SCENARIOS = {"reference": 500, "cpu": 200}
PARTS = 4


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
