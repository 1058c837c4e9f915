"""What a sweep stores (``sweep.json``): the contract between the sweeper, ``--json``, and the reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

SWEEP_SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """Of a level against the baseline, on one metric. "Not significant" is never printed as "same"."""

    BASELINE = "BASELINE"
    BETTER = "BETTER"
    WORSE = "WORSE"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ratio(Frozen):
    """Level over baseline, paired inside blocks: geometric point estimate and 95 % interval. 1.0 = no change."""

    point: float | None
    low: float | None
    high: float | None
    n_blocks: int
    verdict: Verdict
    reason: str = ""
    """Why there is no number, or why the verdict is what it is."""


class Level(Frozen):
    """One level of the factor: where its runs are, what they measured, how it compares."""

    value: Any
    runs: list[str]
    medians: dict[str, float | None]
    """Median over runs of each flat metric (``ttft_p50`` in ms, ``output_tok_s``, ``goodput_ratio`` ...)."""
    ratio: dict[str, Ratio]
    verdict: Verdict
    """Of the primary metric, adjusted over levels (Holm)."""


class Cell(Frozen):
    """One planned run: written to the schedule before anything starts, then filled in by the ledger."""

    block: int
    position: int
    level: Any
    baseline_copy: int | None
    """0 or 1 for the two baselines of a block (the built-in A/A), None for other levels."""
    seed: int
    state: str = "PLANNED"
    """PLANNED | DONE | FAILED | VOID | SKIPPED"""
    run: str | None = None
    reason: str = ""
    metrics: dict[str, float | None] = {}
    output_sha256: str | None = None


class Expectation(Frozen):
    """One line of the hypothesis, and whether it held."""

    metric: str
    direction: str
    """up | down | none: what a larger value of the factor should do to the metric."""
    text: str
    held: bool | None
    """None: the data can't tell."""
    evidence: str = ""


class Equivalence(Frozen):
    """Did every level produce the same tokens for the same requests?"""

    compared: int
    identical: int
    note: str


class SweepResult(Frozen):
    """A whole sweep. ``--json`` prints this object (fields ``factor`` ... ``runs`` of DESIGN 6 are a subset)."""

    schema_version: int = SWEEP_SCHEMA_VERSION
    id: str
    created: str
    status: str
    """complete | budget | interrupted | failed"""
    question: str
    factor: str
    field: str
    baseline: Any
    primary_metric: str
    delta: float
    """Effect of interest, as a share: below it a significant difference is still EQUIVALENT-sized."""
    alpha: float
    slo: str
    workload: dict[str, Any]
    target: dict[str, Any]
    machine: dict[str, Any]
    hypothesis: list[Expectation]
    levels: list[Level]
    best: Any | None
    """Level to choose, None when the data do not single one out."""
    conclusion: str
    cells: list[Cell]
    aa: Ratio
    """The two baselines of each block against each other, on the primary metric."""
    mde: float | None
    """Smallest effect this sweep could have seen (share of the baseline), from its own noise."""
    equivalence: Equivalence
    valid: bool
    invalid_reasons: list[str]
    reproduce: str
    report: str | None
    runs: list[str]
