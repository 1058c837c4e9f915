"""Tier 2: the real engine on the wall clock, in pairs of fresh processes in random order.

Both processes of a pair are alive together and take turns on the same requests, a fraction of a second
each. What counts is the middle of the ratios of neighbouring turns, because a shared machine's speed drifts
within seconds. The control kernel runs before each turn and is compared in the same way: a pair in which it
differs between the sides is kept but not counted, and when it differs in general, nothing counts. A FAIL
must come back in a second, independent set of processes before it blocks: the luck of one build's memory
layout has a narrow interval around a wrong number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.control import LEAST_TOLERANCE, ControlKernel, find_contamination
from experiments.gate.decision import Rule, decide, upper_signed_rank_p
from experiments.gate.models import Finding, GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import RunTurns
from experiments.gate.workloads import with_sha256
from experiments.models import Frozen

TIMEOUT_S = 300.0
CONTROL_REPEATS = 3
SHIFT_ALPHA = 0.05
"""Of "the control differs between the sides": the control of a restless machine scatters by more than 5 %."""
METRICS = {"ttft_ms": 1.0, "itl_ms": 1.0, "output_tok_s": -1.0}
"""Metric to the sign that makes "more" worse."""
LOAD = {
    "light": {"requests": 8, "input": 192, "output": 12},
    "saturated": {"requests": 16, "input": 32, "output": 12, "repeats": 6},
}
"""About three seconds a side with SmolLM2-135M on two cores."""
SPARE = 0.5
"""Share of further pairs that may be run in the place of contaminated ones."""
Say = Callable[[str], None]


class Pair(Frozen):
    """One pair, as measured."""

    index: int
    first: str
    """base | head: which one took the first turn."""
    base: dict[str, float]
    """Metric to the middle of the side's turns."""
    head: dict[str, float]
    ratio: dict[str, float]
    """Metric to the middle of head / base over neighbouring turns."""
    base_control_ms: list[float]
    head_control_ms: list[float]
    usable: bool = True

    @property
    def control_ratio(self) -> float:
        """The middle of head / base over neighbouring turns."""
        return _middle_ratio(self.base_control_ms, self.head_control_ms, "control")


class Pairs:
    """Runs pairs, keeps them all, and says which ones count."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        run: RunTurns,
        control: Callable[[], float],
        engine: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._sides = sides
        self._run = run
        self._control = control
        self._engine = dict(engine)
        self._seed = seed
        self._order = random.Random(seed)
        self.all: list[Pair] = []

    def add(self) -> None:
        """Run one more pair.

        Raises:
            Unusable: a side gave no answer twice.
        """
        index = len(self.all)
        specification = with_sha256({"engine": self._engine, "seed": f"{self._seed}/{index}", **LOAD})
        order = list(self._sides)
        self._order.shuffle(order)
        try:
            found = self._measure(order, specification)
        except Unusable:
            found = self._measure(order, specification)  # once: a machine may stumble
        (base, base_control), (head, head_control) = (found[side.name] for side in self._sides)
        pair = Pair(
            index=index,
            first=order[0].name,
            base={name: median(base[name]) for name in METRICS},
            head={name: median(head[name]) for name in METRICS},
            ratio={name: _middle_ratio(base[name], head[name], name) for name in METRICS},
            base_control_ms=base_control,
            head_control_ms=head_control,
        )
        self.all.append(pair)
        self._mark()

    def _measure(
        self, order: Sequence[Side], specification: dict[str, Any]
    ) -> dict[str, tuple[dict[str, list[float]], list[float]]]:
        """Each side's turns and its control's readings."""
        control: dict[str, list[float]] = {side.name: [] for side in order}

        def before_turn(side: Side) -> None:
            control[side.name].append(round(self._control(), 4))

        answers = self._run(order, "wall", specification, TIMEOUT_S, before_turn)
        return {side.name: (_turns(side, answers[side.name]), control[side.name]) for side in order}

    def _mark(self) -> None:
        """Which pairs count is judged anew with each one: the control's tolerance is learnt from all."""
        readings = {pair.index: [[1.0], [pair.control_ratio]] for pair in self.all}
        bad = set(find_contamination(readings).blocks)
        self.all = [p.model_copy(update={"usable": p.index not in bad}) for p in self.all]

    @property
    def usable(self) -> list[Pair]:
        return [pair for pair in self.all if pair.usable]

    def logs(self) -> dict[str, list[float]]:
        """Per metric ln(head / base) of the usable pairs, more is worse."""
        return {
            name: [sign * math.log(pair.ratio[name]) for pair in self.usable]
            for name, sign in METRICS.items()
        }

    def control_shift(self) -> float:
        """Median ln(control around the head / control around the base)."""
        ratios = self._control_logs()
        return float(np.median(ratios)) if ratios.size else 0.0

    def is_control_shifted(self) -> bool:
        """Whether the control differs between the sides by more than its scatter over the pairs explains."""
        ratios = self._control_logs()
        return 2.0 * min(upper_signed_rank_p(ratios), upper_signed_rank_p(-ratios)) <= SHIFT_ALPHA

    def _control_logs(self) -> NDArray[np.float64]:
        return np.array([math.log(pair.control_ratio) for pair in self.usable])


def _turns(side: Side, answer: Mapping[str, Any]) -> dict[str, list[float]]:
    """Metric to one number a turn.

    Raises:
        Unusable: one is missing, or is no positive number.
    """
    turns = answer.get("turns")
    if not isinstance(turns, dict):
        raise Unusable(f"{side.name}: no turns")
    for name in METRICS:
        values = turns.get(name)
        if not isinstance(values, list) or not values:
            raise Unusable(f"{side.name}: {name} is {values!r}, not a list of numbers")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise Unusable(f"{side.name}: {name} is {value!r}, not a positive number")
    return {name: [float(value) for value in turns[name]] for name in METRICS}


def _middle_ratio(base: Sequence[float], head: Sequence[float], name: str) -> float:
    """Raises:
    Unusable: one side took fewer turns.
    """
    if len(base) != len(head):
        raise Unusable(f"{name}: {len(base)} turns of the base, {len(head)} of the head")
    return math.exp(median(math.log(h / b) for b, h in zip(base, head, strict=True)))


def run_tier2(
    sides: tuple[Side, Side],
    fresh: Callable[[], tuple[Side, Side]],
    run: RunTurns,
    engine: Mapping[str, Any],
    *,
    rule: Rule | None = None,
    control: Callable[[], float] | None = None,
    seed: int = 0,
    say: Say = lambda _text: None,
) -> Tier:
    """Measure, and confirm a FAIL.

    Args:
        fresh: builds both sides anew for the confirmation.
        control: the control kernel, ms; short, as it runs before each turn.

    Raises:
        Unusable: nothing that could be believed was measured.
    """
    rule, control = rule or Rule(), control or ControlKernel(CONTROL_REPEATS)
    first = Pairs(sides, run, control, engine, seed)
    verdict, findings = _looks(first, rule, say)
    details: dict[str, Any] = {"seed": seed, "load": LOAD, **_record(first)}
    if verdict is GateVerdict.FAIL:
        say("FAIL: measured again with both sides built anew before it counts")
        second = Pairs(fresh(), run, control, engine, seed + 1)
        again, confirmed = _looks(second, rule, say)
        details["confirmation"] = _record(second)
        bad = {f.name for f in findings if f.verdict is GateVerdict.FAIL}
        recurring = {f.name for f in confirmed if f.verdict is GateVerdict.FAIL} & bad
        if again is not GateVerdict.FAIL or not recurring:
            findings = [_doubt(f) for f in findings]
            text = f"slower in {len(first.usable)} pairs, but not in a second set of processes"
            return Tier(
                tier=2, verdict=GateVerdict.INCONCLUSIVE, reason=text, findings=findings, details=details
            )
        once = f"; {', '.join(sorted(bad - recurring))} slower the first time" if bad - recurring else ""
        text = f"{', '.join(sorted(recurring))} slower, twice{once}"
        return Tier(tier=2, verdict=GateVerdict.FAIL, reason=text, findings=findings, details=details)
    return Tier(
        tier=2, verdict=verdict, reason=_reason(verdict, first, findings), findings=findings, details=details
    )


def _looks(pairs: Pairs, rule: Rule, say: Say) -> tuple[GateVerdict, list[Finding]]:
    verdict = GateVerdict.INCONCLUSIVE
    findings: list[Finding] = []
    for look in rule.looks:
        while len(pairs.usable) < look:
            if len(pairs.all) >= math.ceil(look * (1.0 + SPARE)):
                raise Unusable(
                    f"{len(pairs.usable)} of {len(pairs.all)} pairs usable, {look} needed: the control "
                    "kernel kept moving, something else uses the machine"
                )
            pairs.add()
            say(f"pair {len(pairs.all)}: {_pair_text(pairs.all[-1])}")
        shift = pairs.control_shift()
        if abs(shift) > math.log1p(LEAST_TOLERANCE) and pairs.is_control_shifted():
            raise Unusable(f"the control kernel differs by {math.expm1(shift):+.1%} between the two sides")
        verdict, findings = decide(pairs.logs(), rule)
        findings = [_with_medians(f, pairs.usable) for f in findings]
        say(f"look at {look} pairs: {verdict}")
        if verdict is not GateVerdict.INCONCLUSIVE:
            break
    return verdict, findings


def _with_medians(finding: Finding, pairs: Sequence[Pair]) -> Finding:
    base, head = (median(getattr(p, side)[finding.name] for p in pairs) for side in ("base", "head"))
    return finding.model_copy(update={"base": base, "head": head})


def _doubt(finding: Finding) -> Finding:
    if finding.verdict is not GateVerdict.FAIL:
        return finding
    return finding.model_copy(
        update={"verdict": GateVerdict.INCONCLUSIVE, "text": finding.text + "; did not recur"}
    )


def _reason(verdict: GateVerdict, pairs: Pairs, findings: Sequence[Finding]) -> str:
    count = len(pairs.usable)
    if verdict is GateVerdict.PASS:
        return f"no metric is 10 % slower, {count} pairs"
    blind = max((f.mde for f in findings if f.mde is not None), default=None)
    seen = f"; {blind:.0%} would have been seen" if blind is not None else ""
    return f"{count} pairs can't tell{seen}"


def _record(pairs: Pairs) -> dict[str, Any]:
    return {
        "pairs": [pair.model_dump(mode="json") for pair in pairs.all],
        "usable_pairs": len(pairs.usable),
        "control_shift": round(math.expm1(pairs.control_shift()), 5),
    }


def _pair_text(pair: Pair) -> str:
    parts = [f"{name.removesuffix('_ms').removesuffix('_s')} {pair.ratio[name] - 1:+.1%}" for name in METRICS]
    return "  ".join(parts) + ("" if pair.usable else "  (control differs: not counted)")
