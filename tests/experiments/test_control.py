"""Which blocks the control kernel calls contaminated."""

from experiments.control import LEAST_TOLERANCE, MOST_TOLERANCE, find_contamination

CALM = [(2.00, 2.02), (2.01, 1.99), (1.98, 2.00), (2.02, 2.01)]


def test_a_slower_control_accuses_its_block() -> None:
    found = find_contamination({0: CALM, 1: [*CALM, (2.9, 2.8)]})
    assert found.blocks == [1]
    assert LEAST_TOLERANCE <= found.tolerance <= MOST_TOLERANCE


def test_a_faster_control_accuses_nobody() -> None:
    assert find_contamination({0: CALM, 1: [*CALM, (1.3, 1.2)]}).blocks == []


def test_a_restless_machine_widens_the_tolerance_up_to_its_limit() -> None:
    restless = {0: [(2.0, 2.0), (2.3, 2.3), (1.7, 1.7), (2.25, 2.25)]}
    assert find_contamination(restless).tolerance == MOST_TOLERANCE


def test_one_reading_says_nothing() -> None:
    assert find_contamination({0: [(2.0, 9.0)]}).blocks == []
