"""What a diagnosis says: ``findings.json``, ``workbench diagnose --json``, the report's section."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from experiments.models import Frozen

FINDINGS_SCHEMA_VERSION = 1
FINDINGS = "findings.json"


class Family(StrEnum):
    QUEUEING = "queueing"
    ACCELERATOR_GAPS = "accelerator_gaps"
    CONTEXT_SCALING = "context_scaling"
    CACHE_CORRECTNESS = "cache_correctness"
    PREEMPTION = "preemption"


Confidence = Literal["high", "medium", "low", "none"]


class Effect(Frozen):
    """How much it costs. ``value`` in ``unit``; ``share`` of the time of all requests (of wrong results for
    ``cache_correctness``), which is what findings are ordered by.
    """

    name: str
    value: float
    unit: str
    share: float


class Evidence(Frozen):
    """One observation. ``rows`` point into ``table``: step ids of ``steps``, request ids of ``requests``."""

    text: str
    value: float | None = None
    unit: str = ""
    table: str | None = None
    rows: list[int | str] = Field(default=[])


class Rival(Frozen):
    """Another explanation of the same symptom, and what speaks against it (or what could not be ruled
    out).
    """

    name: str
    ruled_out: bool
    why: str


class Finding(Frozen):
    """Verdict of one family. An abstention has its reason as the claim, no effect and no next experiment."""

    family: Family
    verdict: Literal["finding", "abstain"]
    cause: str | None = None
    """Short name of what is at fault: ``max_num_seqs``, ``prepare`` ..."""
    claim: str
    effect: Effect | None = None
    evidence: list[Evidence] = Field(default=[])
    rivals: list[Rival] = Field(default=[])
    confidence: Confidence = "none"
    next: str | None = None
    """The single-factor experiment that would confirm it, ready to run."""

    @property
    def effect_text(self) -> str:
        """The effect in words; empty without one."""
        effect = self.effect
        if effect is None:
            return ""
        cost = "" if effect.unit == "requests" else f"; {effect.share:.0%} of all requests' time"
        size = f"{effect.value:,.0f}" if abs(effect.value) >= 1000 else f"{effect.value:.3g}"
        return f"{effect.name}: {size} {effect.unit}{cost}"


class Check(Frozen):
    """A test of the data itself, before anything is concluded from it."""

    name: str
    ok: bool
    value: float | None
    text: str


class Diagnosis(Frozen):
    """All families of one run, findings first, the costliest at the top."""

    schema_version: int = FINDINGS_SCHEMA_VERSION
    run: str
    against: list[str] = Field(default=[])
    checks: list[Check]
    findings: list[Finding]

    @property
    def top(self) -> Finding | None:
        """The first finding; None when every family abstains."""
        first = self.findings[0] if self.findings else None
        return first if first is not None and first.verdict == "finding" else None


def abstain(family: Family, why: str, evidence: list[Evidence] | None = None) -> Finding:
    """No verdict, and the reason in words."""
    return Finding(family=family, verdict="abstain", claim=why, evidence=evidence or [])
