"""Which blocks the control kernel calls contaminated."""

import pytest

from experiments.control import LEAST_TOLERANCE, MOST_TOLERANCE, find_contamination

CALM = [(2.00, 2.02), (2.01, 1.99), (1.98, 2.00), (2.02, 2.01)]


def test_a_slower_control_accuses_its_block() -> None:
    found = find_contamination({0: CALM, 1: [*CALM, (2.9, 2.8)]})
    assert found.blocks == [1]
    assert LEAST_TOLERANCE <= found.tolerance <= MOST_TOLERANCE


def test_a_faster_control_accuses_its_block_too() -> None:
    """The level that ran in that moment looks better than it is."""
    assert find_contamination({0: CALM, 1: [*CALM, (1.3, 1.2)]}).blocks == [1]


@pytest.mark.parametrize("factor", [1.04, 1.2, 1.9])
def test_faster_and_slower_by_the_same_ratio_are_judged_alike(factor: float) -> None:
    slower = find_contamination({0: CALM, 1: [*CALM, (2.0 * factor,) * 2]})
    faster = find_contamination({0: CALM, 1: [*CALM, (2.0 / factor,) * 2]})
    assert slower.blocks == faster.blocks == ([] if factor < 1.05 else [1])
    assert slower.tolerance == pytest.approx(faster.tolerance)


def test_a_machine_that_became_faster_between_two_runs_of_a_pair_spoils_the_pair() -> None:
    pairs = {index: [(2.0, 2.0), (2.0, 2.0)] for index in range(5)}
    assert find_contamination({**pairs, 5: [(2.0, 2.0), (1.5, 1.5)]}).blocks == [5]
    assert find_contamination({**pairs, 5: [(1.5, 1.5), (2.0, 2.0)]}).blocks == [5]


def test_a_restless_machine_widens_the_tolerance_up_to_its_limit() -> None:
    restless = {0: [(2.0, 2.0), (2.3, 2.3), (1.7, 1.7), (2.25, 2.25)]}
    assert find_contamination(restless).tolerance == MOST_TOLERANCE


def test_one_reading_says_nothing() -> None:
    assert find_contamination({0: [(2.0, 9.0)]}).blocks == []
