"""Tier 1: the scheduler on virtual time, with tolerance 0. No noise of any machine reaches it.

Both revisions are computed anew in the same job: a committed baseline goes stale unseen.
"""

from __future__ import annotations

from typing import Any

from experiments.gate.models import Finding, GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import RunScript
from experiments.gate.workloads import scheduler_workloads, with_sha256

TIMEOUT_S = 300.0
CALLS_TOLERANCE = 0.05
"""Python calls change with any tidying up; more than this is work per step that a user will feel."""
HIGHER_IS_BETTER = frozenset({"good_requests", "output_tokens", "prefix_hit_tokens"})


def run_tier1(base: Side, head: Side, run: RunScript) -> Tier:
    """Raises:
    Unusable: a revision gave no numbers, or the base knows none of the workloads.
    """
    specification = with_sha256({"workloads": scheduler_workloads()})
    before = run(base, "simulate", specification, TIMEOUT_S)["workloads"]
    after = run(head, "simulate", specification, TIMEOUT_S)["workloads"]
    findings: list[Finding] = []
    compared = 0
    for workload in specification["workloads"]:
        name = workload["name"]
        one, two = before.get(name), after.get(name)
        if not one or not two:
            raise Unusable(f"{'base' if not one else 'head'}: no numbers for {name}")
        if "error" in two:
            findings.append(Finding(name=name, verdict=GateVerdict.FAIL, text=f"head: {two['error']}"))
            continue
        if "error" in one:
            text = f"no baseline: {one['error']}"
            findings.append(Finding(name=name, verdict=GateVerdict.SKIPPED, text=text))
            continue
        compared += 1
        findings += compare_workload(name, one, two)
    if not compared and not any(f.verdict is GateVerdict.FAIL for f in findings):
        raise Unusable("no baseline: the base runs none of the workloads")
    worse = [finding for finding in findings if finding.verdict is GateVerdict.FAIL]
    better = sum(1 for finding in findings if finding.text.startswith("better"))
    reason = f"{compared} workloads, "
    reason += f"{len(worse)} numbers worse" if worse else "no number worse"
    reason += f", {better} better" if better else ""
    return Tier(
        tier=1,
        verdict=GateVerdict.FAIL if worse else GateVerdict.PASS,
        reason=reason,
        findings=findings,
        details={"specification_sha256": specification["sha256"]},
    )


def compare_workload(name: str, base: dict[str, Any], head: dict[str, Any]) -> list[Finding]:
    """One finding for each number that differs; one that says "identical" when none does."""
    findings = []
    for metric, before in base.items():
        if metric not in head:
            raise Unusable(f"head: no {metric} for {name}")
        after = head[metric]
        if before == after:
            continue
        is_worse = (after < before) == (metric in HIGHER_IS_BETTER)
        if metric == "python_calls" and after <= before * (1.0 + CALLS_TOLERANCE):
            is_worse = False
        word = (
            "worse"
            if is_worse
            else ("better" if (after > before) == (metric in HIGHER_IS_BETTER) else "more")
        )
        share = f" ({after / before - 1.0:+.2%})" if before else ""
        findings.append(
            Finding(
                name=f"{name}/{metric}",
                verdict=GateVerdict.FAIL if is_worse else GateVerdict.PASS,
                base=before,
                head=after,
                ratio=after / before if before else None,
                text=f"{word}: {before} → {after}{share}",
            )
        )
    return findings or [Finding(name=name, verdict=GateVerdict.PASS, text="identical")]
