"""Tier 2's rule: looks at 10, 20 and 30 pairs, four answers, known error rates.

Per metric and pair the number is ln(head / base), turned so that more is worse. FAIL at a look when for some
metric "at most 3 % slower" is refuted at p <= 0.01 / looks / metrics by the exact one-sided signed-rank test
**and** the median is at least 5 % slower. PASS when for every metric "at least 10 % slower" is refuted at
p <= 0.05. Otherwise more pairs; after the last look INCONCLUSIVE. Ranks, because a spike in one pair must not
decide; a margin in the null hypothesis, because with enough pairs any two builds differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from experiments.gate.models import Finding, GateVerdict
from experiments.stats import interval, minimum_detectable_effect

Floats = NDArray[np.float64]

LOOKS = (10, 20, 30)
TOLERATED = 0.03
RELEVANT = 0.05
EXCLUDED = 0.10
FAIL_ALPHA = 0.01
PASS_ALPHA = 0.05


@dataclass(frozen=True)
class Rule:
    """The constants; the defaults are those whose error rates the tests check."""

    looks: tuple[int, ...] = LOOKS
    tolerated: float = TOLERATED
    relevant: float = RELEVANT
    excluded: float = EXCLUDED
    fail_alpha: float = FAIL_ALPHA
    pass_alpha: float = PASS_ALPHA


def decide(
    samples: Mapping[str, Sequence[float] | Floats], rule: Rule, *, describe: bool = True
) -> tuple[GateVerdict, list[Finding]]:
    """The answer at one look.

    Args:
        samples: per metric, ln(head / base) of each pair, more is worse; all of the same length.
        describe: add intervals and the smallest effect that would have been seen; no verdict needs them.

    Returns:
        PASS, FAIL or INCONCLUSIVE (more pairs may tell), and a finding per metric.
    """
    findings = []
    for name, sample in samples.items():
        logs = np.asarray(sample, dtype=np.float64)
        finding = _judge(name, logs, len(samples), rule)
        findings.append(_describe(finding, logs, len(samples), rule) if describe else finding)
    verdicts = {finding.verdict for finding in findings}
    if GateVerdict.FAIL in verdicts:
        return GateVerdict.FAIL, findings
    if verdicts == {GateVerdict.PASS}:
        return GateVerdict.PASS, findings
    return GateVerdict.INCONCLUSIVE, findings


def _judge(name: str, logs: Floats, metrics: int, rule: Rule) -> Finding:
    p_slower = upper_signed_rank_p(logs - math.log1p(rule.tolerated))
    p_not_slower = upper_signed_rank_p(math.log1p(rule.excluded) - logs)
    bound = rule.fail_alpha / len(rule.looks) / metrics
    verdict, text = GateVerdict.INCONCLUSIVE, "the pairs can't tell"
    if p_slower <= bound and float(np.median(logs)) >= math.log1p(rule.relevant):
        verdict = GateVerdict.FAIL
        text = f"more than {rule.tolerated:.0%} slower (p = {p_slower:.2g} <= {bound:.2g})"
    elif p_not_slower <= rule.pass_alpha:
        verdict, text = GateVerdict.PASS, f"not {rule.excluded:.0%} slower (p = {p_not_slower:.2g})"
    return Finding(name=name, verdict=verdict, p_slower=p_slower, p_not_slower=p_not_slower, text=text)


def _describe(finding: Finding, logs: Floats, metrics: int, rule: Rule) -> Finding:
    estimate = interval(logs)
    point = estimate.point if estimate else (float(np.median(logs)) if logs.size else math.nan)
    effect = None
    if logs.size > 1:
        alpha = 2 * rule.fail_alpha / len(rule.looks) / metrics
        effect = minimum_detectable_effect(float(np.std(logs, ddof=1)), logs.size, alpha=alpha)
    return finding.model_copy(
        update={
            "ratio": _exp(point),
            "low": _exp(estimate.low) if estimate else None,
            "high": _exp(estimate.high) if estimate else None,
            "mde": None if effect is None else (1.0 + effect) * (1.0 + rule.tolerated) - 1.0,
        }
    )


def _exp(x: float) -> float | None:
    return math.exp(x) if math.isfinite(x) else None


def upper_signed_rank_p(values: Floats) -> float:
    """Exact one-sided p of Wilcoxon's signed-rank test that the middle of ``values`` is at most 0.

    Zeros are split between both signs and equal sizes share their mean rank (Pratt would drop them; keeping
    them is the cautious choice: it can only raise p).
    """
    if values.size == 0:
        return 1.0
    sizes = np.abs(values)
    order = np.argsort(sizes, kind="stable")
    ranks = np.empty(values.size)
    ranks[order] = np.arange(1, values.size + 1)
    ordered = sizes[order]
    for size in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        same = sizes == size
        ranks[same] = ranks[same].mean()
    positive = float(ranks[values > 0].sum() + 0.5 * ranks[values == 0].sum())
    # P(W >= w) = P(W <= n(n+1)/2 - w) by symmetry; a half rank counts against the claim.
    total = values.size * (values.size + 1) // 2
    return float(_cumulative(values.size)[min(total, math.ceil(total - positive))])


@lru_cache(maxsize=64)
def _cumulative(n: int) -> tuple[float, ...]:
    """P(W <= w) of the signed-rank statistic when both signs are equally likely."""
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[:-rank]
        ways = (ways + shifted) / 2.0
    return tuple(np.cumsum(ways).tolist())
