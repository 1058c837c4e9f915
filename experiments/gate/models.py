"""What the gate stores (``gate.json``) and prints with ``--json``."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from experiments.models import Frozen

GATE_SCHEMA_VERSION = 1


class GateVerdict(StrEnum):
    """Of a tier and of the gate. Missing data is never a pass."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    """The data can't tell; does not block, and says which effect it could have seen."""
    UNUSABLE = "UNUSABLE"
    """Nothing was measured that could be believed: not green."""
    SKIPPED = "SKIPPED"
    """Not asked for, or nothing that it looks at has changed."""


EXIT_CODES = {
    GateVerdict.PASS: 0,
    GateVerdict.INCONCLUSIVE: 0,
    GateVerdict.SKIPPED: 0,
    GateVerdict.FAIL: 1,
    GateVerdict.UNUSABLE: 3,
}


class Unusable(Exception):  # noqa: N818 - a verdict, named as such
    """A measurement that can't be used; its text is the reason."""


class Side(Frozen):
    """One of the two revisions."""

    name: str
    """base | head"""
    revision: str | None
    commit: str | None
    folder: str
    python: str


class Finding(Frozen):
    """One thing that a tier compared."""

    name: str
    """Such as ``itl_ms`` or ``mixed/steps``."""
    verdict: GateVerdict
    base: float | None = None
    head: float | None = None
    ratio: float | None = None
    """How much worse the head is: above 1 is slower or more, whatever the metric's good side."""
    low: float | None = None
    high: float | None = None
    p_slower: float | None = None
    """Of "at most 3 % slower"."""
    p_not_slower: float | None = None
    """Of "at least 10 % slower"."""
    mde: float | None = None
    text: str = ""
    acknowledged: str = ""
    """The reason given in the acknowledgement file."""


class Tier(Frozen):
    """Verdict of one tier with everything it compared."""

    tier: int
    verdict: GateVerdict
    reason: str
    findings: list[Finding] = Field(default=[])
    details: dict[str, Any] = Field(default={})
    """Raw pairs, looks, contamination, seeds: what a reader needs to check it."""


class GateResult(Frozen):
    """A whole gate."""

    schema_version: int = GATE_SCHEMA_VERSION
    created: str
    base: Side
    head: Side
    verdict: GateVerdict
    exit_code: int
    reason: str
    tiers: list[Tier]
    machine: dict[str, Any]
    tool_version: str
    command: list[str]
    seconds: float
