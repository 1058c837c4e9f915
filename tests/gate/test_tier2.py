"""Tier 2 on scripted runs: looks, confirmation, contamination, and no pass without a measurement."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.gate.decision import Rule
from experiments.gate.models import GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import one_after_the_other
from experiments.gate.tier2 import Pairs, run_tier2
from tests.gate.sides import Control, ScriptedWall, calm, side


def judge(run: Any, control: Control = calm, fresh: Any = None, seed: int = 0) -> Tier:
    sides = (side("base", "/a"), side("head", "/b"))
    turns = one_after_the_other(run)
    return run_tier2(sides, fresh or (lambda: sides), turns, {"model": "m"}, control=control, seed=seed)


def test_equal_sides_pass_at_the_first_look() -> None:
    run = ScriptedWall()
    tier = judge(run)
    assert tier.verdict is GateVerdict.PASS
    assert tier.details["usable_pairs"] == 10
    assert Counter(name for name, _ in run.asked) == {"base": 10, "head": 10}


def test_both_runs_of_a_pair_get_the_same_requests_and_the_order_is_random() -> None:
    run = ScriptedWall()
    tier = judge(run)
    seeds = [specification["seed"] for _, specification in run.asked]
    assert seeds[0::2] == seeds[1::2]
    assert len(set(seeds)) == 10
    assert {pair["first"] for pair in tier.details["pairs"]} == {"base", "head"}


def test_a_slow_down_fails_only_after_a_second_set_of_processes() -> None:
    built = []
    sides = (side("base", "/c"), side("head", "/d"))

    def fresh() -> tuple[Side, Side]:
        built.append(1)
        return sides

    run = ScriptedWall({"ttft_ms": 0.15})
    tier = judge(run, fresh=fresh)
    assert tier.verdict is GateVerdict.FAIL
    assert built == [1]
    assert "ttft_ms slower, twice" in tier.reason
    assert {f.name: f.verdict for f in tier.findings if f.verdict is GateVerdict.FAIL} == {
        "ttft_ms": GateVerdict.FAIL
    }
    assert tier.details["confirmation"]["usable_pairs"] >= 10
    head = [specification["seed"] for name, specification in run.asked if name == "head"]
    assert len(set(head)) == len(head)


def test_the_luck_of_one_build_is_cleared_by_the_confirmation() -> None:
    """A constant +11 % in one set of processes, gone in the next: a memory layout, not a regression."""
    sides = (side("base", "/a"), side("head", "/b"))
    slow, fast = (
        ScriptedWall({"itl_ms": 0.11, "ttft_ms": 0.11, "output_tok_s": 0.11}, sd=0.005),
        ScriptedWall(),
    )
    current = [slow]

    def run(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return current[0](side, script, specification, timeout_s)

    def fresh() -> tuple[Side, Side]:
        current[0] = fast
        return sides

    tier = judge(run, fresh=fresh)
    assert tier.verdict is GateVerdict.INCONCLUSIVE
    assert "not in a second set" in tier.reason
    assert all(f.verdict is not GateVerdict.FAIL for f in tier.findings)


def test_noise_ends_inconclusive_and_says_what_it_could_have_seen() -> None:
    tier = judge(ScriptedWall({"itl_ms": 0.06}, sd=0.12, seed=5))
    assert tier.verdict is GateVerdict.INCONCLUSIVE
    assert tier.details["usable_pairs"] == 30
    assert "would have been seen" in tier.reason


def test_contaminated_pairs_are_kept_not_counted_and_replaced() -> None:
    readings = iter(range(10**6))

    def control() -> float:
        number = next(readings)
        return 4.5 if number // 4 == 3 and number % 4 >= 2 else 3.0

    tier = judge(ScriptedWall(), control=control)
    assert tier.verdict is GateVerdict.PASS
    assert tier.details["usable_pairs"] == 10
    assert [pair["usable"] for pair in tier.details["pairs"]].count(False) == 1
    assert len(tier.details["pairs"]) == 11


def test_a_machine_that_never_rests_is_unusable() -> None:
    readings = iter(range(10**6))

    def control() -> float:
        number = next(readings)
        return 3.0 * (1.0 + (number % 4 >= 2))

    with pytest.raises(Unusable, match="control"):
        judge(ScriptedWall(), control=control)


@pytest.mark.parametrize(
    ("head_ms", "is_shifted"), [([3.6, 2.7] * 5, False), ([3.3] * 10, True), ([2.7] * 10, True)]
)
def test_a_control_is_shifted_when_its_scatter_does_not_explain_it(
    head_ms: list[float], is_shifted: bool
) -> None:
    sides = (side("base", "/a"), side("head", "/b"))
    pairs = Pairs(sides, one_after_the_other(ScriptedWall()), calm, {}, 0)
    for _ in head_ms:
        pairs.add()
    pairs.all = [
        pair.model_copy(update={"head_control_ms": [ms], "base_control_ms": [3.0]})
        for pair, ms in zip(pairs.all, head_ms, strict=True)
    ]
    assert pairs.is_control_shifted() is is_shifted


def test_a_run_without_an_answer_is_tried_once_more_then_unusable() -> None:
    calls = []

    def dead(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        calls.append(side.name)
        raise Unusable(f"{side.name}: wall failed (exit 1): killed")

    with pytest.raises(Unusable, match="killed"):
        judge(dead)
    assert len(calls) == 2


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("nan"), float("inf"), "8", True])
def test_a_number_that_is_none_is_unusable_never_zero(value: object) -> None:
    def empty(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return {"turns": {"ttft_ms": [100.0], "itl_ms": [value], "output_tok_s": [300.0]}}

    with pytest.raises(Unusable, match="itl_ms"):
        judge(empty)


def test_the_order_is_recorded_by_its_seed() -> None:
    def orders(seed: int) -> list[str]:
        pairs = Pairs(
            (side("base", "/a"), side("head", "/b")), one_after_the_other(ScriptedWall()), calm, {}, seed
        )
        for _ in range(12):
            pairs.add()
        return [pair.first for pair in pairs.all]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)


def test_looks_are_the_rules() -> None:
    sides = (side("base", Path("/a")), side("head", Path("/b")))
    run = ScriptedWall({"itl_ms": 0.06}, sd=0.12, seed=5)
    tier = run_tier2(
        sides, lambda: sides, one_after_the_other(run), {}, rule=Rule(looks=(10, 12)), control=calm
    )
    assert tier.details["usable_pairs"] == 12
