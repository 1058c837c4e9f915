"""Tier 0: do both revisions give the same tokens? Nothing else is worth comparing when they do not."""

from __future__ import annotations

from typing import Any

from experiments.gate.models import Finding, GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import RunScript
from experiments.gate.workloads import with_sha256

TIMEOUT_S = 600.0


def token_cases(model: str, engine: dict[str, Any]) -> dict[str, Any]:
    """Pinned requests: greedy and seeded, short and long prompts, alone and together, small and large chunks,
    with shared prefixes."""
    greedy = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    drawn = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "seed": 7, "max_tokens": 24, "ignore_eos": True}
    cases = [
        {"name": "short-greedy", "prompt": [["a", 12]], "params": greedy},
        {"name": "long-greedy", "prompt": [["b", 700]], "params": greedy},
        {"name": "prefix-1", "prompt": [["p", 128], ["c", 30]], "params": greedy},
        {"name": "prefix-2", "prompt": [["p", 128], ["d", 41]], "params": greedy},
        {"name": "short-drawn", "prompt": [["e", 20]], "params": drawn},
        {"name": "long-drawn", "prompt": [["f", 333]], "params": {**drawn, "seed": 11}},
        {"name": "penalties", "prompt": [["g", 40]], "params": {**drawn, "frequency_penalty": 0.5}},
        {"name": "one-token", "prompt": [["h", 1]], "params": greedy},
    ]  # fmt: skip
    groups = [
        {"name": "default", "engine": {}, "cases": cases},
        {"name": "chunks", "engine": {"max_num_batched_tokens": 48, "max_num_seqs": 8}, "cases": cases},
    ]
    return with_sha256({"engine": {"model": model, **engine}, "groups": groups})


def run_tier0(base: Side, head: Side, run: RunScript, model: str, engine: dict[str, Any]) -> Tier:
    """Raises:
    Unusable: one of the two gave no tokens.
    """
    specification = token_cases(model, engine)
    before = run(base, "tokens", specification, TIMEOUT_S)["cases"]
    after = run(head, "tokens", specification, TIMEOUT_S)["cases"]
    expected = {f"{g['name']}/{c['name']}" for g in specification["groups"] for c in g["cases"]}
    for side, cases in ((base, before), (head, after)):
        missing = sorted(expected - cases.keys())
        if missing:
            raise Unusable(f"{side.name}: no tokens for {missing[0]}")
    findings = [compare_case(name, before[name], after[name]) for name in sorted(expected)]
    wrong = [finding for finding in findings if finding.verdict is GateVerdict.FAIL]
    return Tier(
        tier=0,
        verdict=GateVerdict.FAIL if wrong else GateVerdict.PASS,
        reason=f"{len(wrong)} of {len(findings)} requests differ" if wrong else f"{len(findings)} identical",
        findings=findings,
        details={"specification_sha256": specification["sha256"]},
    )  # fmt: skip


def compare_case(name: str, base: dict[str, Any], head: dict[str, Any]) -> Finding:
    """Tokens, their number, how it ended, and errors must be equal."""
    if base["error"] or head["error"]:
        return Finding(name=name, verdict=GateVerdict.FAIL, text=f"error: {head['error'] or base['error']}")
    one, two = base["token_ids"], head["token_ids"]
    if not one:
        raise Unusable(f"{name}: the base gave no token")
    if one == two and base["finish_reason"] == head["finish_reason"]:
        return Finding(name=name, verdict=GateVerdict.PASS, base=len(one), head=len(two), text="identical")
    place = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )
    text = f"differs from token {place} on"
    if one == two:
        text = f"ends with {head['finish_reason']}, the base with {base['finish_reason']}"
    return Finding(name=name, verdict=GateVerdict.FAIL, base=len(one), head=len(two), text=text)
