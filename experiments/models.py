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
    FAILED = "FAILED"
    """The target never ran with this level."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ratio(Frozen):
    """Level over baseline, paired inside blocks: geometric point estimate and 95 % interval. 1.0 = no
    change."""

    point: float | None
    low: float | None
    high: float | None
    n_blocks: int
    verdict: Verdict
    reason: str = ""
    """Why there is no number, or why the verdict is what it is."""
    p_value: float | None = None
    """Two-sided, Holm-adjusted over the levels of this metric."""
    flagged: bool = False
    """A tail with too few samples a run (n * 0.01 < 10): read it as an indication, not as a p99."""


class Level(Frozen):
    """One level of the factor: where its runs are, what they measured, how it compares."""

    value: Any
    runs: list[str]
    medians: dict[str, float | None]
    """Median over runs of each flat metric (``ttft_p50`` in ms, ``output_tok_s``, ``goodput_ratio`` ...)."""
    ratio: dict[str, Ratio]
    verdict: Verdict
    """Of the primary metric, adjusted over levels (Holm)."""
    failed: str = ""
    """Why the target could not run this level, "" when it could."""


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
    phase: str = "sweep"
    """pilot (the baseline against itself, before the blocks) | sweep | confirm (the winner against the
    baseline on fresh seeds) | across (the same along an axis)"""
    at: Any = None
    """Phase across: the value on the axis."""
    nonce: str = ""
    """Goes into the prompts with the seed: the same inside a block, so that its runs see the same
    requests."""
    attempts: int = 0
    seconds: float | None = None
    """Wall time of the run, start of the target included."""
    control_ms: list[float] = []
    """The control kernel just before and just after the run: it can't be touched by the factor."""
    contaminated: bool = False
    """The control moved inside this block by more than the sweep's tolerance: something else used the
    machine."""
    flagged: list[str] = []
    """Tail metrics of this run with too few samples."""


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
    per_level: dict[str, tuple[int, int]] = {}
    """Level (as text; "baseline again" for the A/A copy): (requests compared, identical)."""


class Confirmation(Frozen):
    """The winner against the baseline on fresh seeds: a sweep's winner is biased upwards, this number is
    not."""

    level: Any
    ratio: dict[str, Ratio]
    runs: list[str]
    verdict: Verdict
    """Of the primary metric."""


class Pilot(Frozen):
    """What the baseline against itself said before the blocks began."""

    pairs: int
    sd: float
    """Of the log of one run."""
    blocks: int
    """That the budget holds."""
    mde: float | None
    """Smallest effect that so many blocks will see."""
    text: str


class AcrossPoint(Frozen):
    """The winner against the baseline at one value of another setting."""

    value: Any
    ratio: dict[str, Ratio]
    runs: list[str]
    verdict: Verdict
    """Of the primary metric: BETTER the gain holds, EQUIVALENT it vanishes, WORSE it reverses."""


class Boundary(Frozen):
    """What the answer is good for: where it was tested, and where the effect stops."""

    tested: list[Any]
    better: list[Any]
    equivalent: list[Any]
    worse: list[Any]
    unknown: list[Any]
    conditions: dict[str, Any]
    """Workload, rate, model, machine: an answer for these, not beyond."""
    text: str


class Drift(Frozen):
    """The baseline's own trend over the sweep (log-linear in run order) on the primary metric."""

    total: float | None
    """Fitted change from the first to the last baseline run, as a share."""
    p_value: float | None
    text: str


class SweepResult(Frozen):
    """A whole sweep; ``--json`` prints this object, see docs/experiments.md."""

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
    factor_values: list[Any] = []
    """Every level of the design, in order (levels that failed included)."""
    engine: dict[str, Any] = {}
    """Engine settings that all levels share."""
    fixed: dict[str, Any] = {}
    """Of those, the ones that the factor itself fixes so that every level is allowed."""
    design: dict[str, Any] = {}
    """seed, blocks planned and done, runs per block, budget_s, elapsed_s."""
    calibration: dict[str, Any] = {}
    """How the request rate was set: capacity, utilisation, request_rate."""
    confirmation: Confirmation | None = None
    boundary: Boundary | None = None
    pilot: Pilot | None = None
    across_axis: str = ""
    across: list[AcrossPoint] = []
    """The winner against the baseline along ``across_axis``."""
    drift: Drift | None = None
    contaminated_blocks: list[int] = []
    control_tolerance: float | None = None
    """Share by which the control kernel may move inside a block, learnt from its own spread in this sweep."""
    notes: list[str] = []
    """What a reader should know and no number says."""
