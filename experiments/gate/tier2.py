"""Tier 2: the real engine on the wall clock, in pairs of fresh processes in random order.

A pair is base and head one right after the other on the same requests. The control kernel runs around each
run: a pair in which it moved is kept but not counted, and when it differs between the two sides in general,
nothing counts. A FAIL must come back in a second, independent set of processes before it blocks: the luck of
one build's memory layout has a narrow interval around a wrong number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from experiments.control import LEAST_TOLERANCE, ControlKernel, find_contamination
from experiments.gate.decision import Rule, decide
from experiments.gate.models import Finding, GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import RunScript
from experiments.gate.workloads import with_sha256
from experiments.models import Frozen

TIMEOUT_S = 300.0
METRICS = {"ttft_ms": 1.0, "itl_ms": 1.0, "output_tok_s": -1.0}
"""Metric to the sign that makes "more" worse."""
LOAD = {
    "light": {"requests": 4, "input": 192, "output": 20},
    "saturated": {"requests": 16, "input": 48, "output": 24, "repeats": 2},
}
SPARE = 0.5
"""Share of further pairs that may be run in the place of contaminated ones."""
Say = Callable[[str], None]


class Pair(Frozen):
    """One pair, as measured."""

    index: int
    first: str
    """base | head: which one ran first."""
    base: dict[str, float]
    head: dict[str, float]
    base_control_ms: list[float]
    head_control_ms: list[float]
    usable: bool = True


class Pairs:
    """Runs pairs, keeps them all, and says which ones count."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        run: RunScript,
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
        found: dict[str, tuple[dict[str, float], list[float]]] = {}
        for side in order:
            before = self._control()
            metrics = self._measure(side, specification)
            found[side.name] = metrics, [round(before, 4), round(self._control(), 4)]
        base, head = self._sides
        pair = Pair(
            index=index, first=order[0].name, base=found[base.name][0], head=found[head.name][0],
            base_control_ms=found[base.name][1], head_control_ms=found[head.name][1],
        )  # fmt: skip
        self.all.append(pair)
        self._mark()

    def _measure(self, side: Side, specification: dict[str, Any]) -> dict[str, float]:
        try:
            answer = self._run(side, "wall", specification, TIMEOUT_S)
        except Unusable:
            answer = self._run(side, "wall", specification, TIMEOUT_S)  # once: a machine may stumble
        metrics = answer.get("metrics")
        if not isinstance(metrics, dict):
            raise Unusable(f"{side.name}: no metrics")
        for name in METRICS:
            value = metrics.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise Unusable(f"{side.name}: {name} is {value!r}, not a positive number")
        return {name: float(metrics[name]) for name in METRICS}

    def _mark(self) -> None:
        """Which pairs count is judged anew with each one: the control's tolerance is learnt from all."""
        readings = {pair.index: [pair.base_control_ms, pair.head_control_ms] for pair in self.all}
        bad = set(find_contamination(readings).blocks)
        self.all = [p.model_copy(update={"usable": p.index not in bad}) for p in self.all]

    @property
    def usable(self) -> list[Pair]:
        return [pair for pair in self.all if pair.usable]

    def logs(self) -> dict[str, list[float]]:
        """Per metric ln(head / base) of the usable pairs, more is worse."""
        return {
            name: [sign * math.log(pair.head[name] / pair.base[name]) for pair in self.usable]
            for name, sign in METRICS.items()
        }

    def control_shift(self) -> float:
        """Median ln(control around the head / control around the base)."""
        ratios = [math.log(fmean(p.head_control_ms) / fmean(p.base_control_ms)) for p in self.usable]
        return median(ratios) if ratios else 0.0


def run_tier2(
    sides: tuple[Side, Side],
    fresh: Callable[[], tuple[Side, Side]],
    run: RunScript,
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
        control: the control kernel, ms.

    Raises:
        Unusable: nothing that could be believed was measured.
    """
    rule, control = rule or Rule(), control or ControlKernel()
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
        text = f"{', '.join(sorted(recurring))} slower, twice"
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
        if abs(shift) > math.log1p(LEAST_TOLERANCE):
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
    parts = [
        f"{name.removesuffix('_ms').removesuffix('_s')} {pair.head[name] / pair.base[name] - 1:+.1%}"
        for name in METRICS
    ]
    return "  ".join(parts) + ("" if pair.usable else "  (control moved: not counted)")
