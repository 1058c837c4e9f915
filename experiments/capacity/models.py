"""What a capacity search stores (``capacity.json``) and prints with ``--json``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from experiments.models import Frozen
from experiments.targets import TargetChoice

CAPACITY_SCHEMA_VERSION = 1


class CapacitySpec(Frozen):
    """The question, fixed before the first run."""

    slo: str
    target_ratio: float
    """Share of the offered requests that must meet every objective."""
    lowest: float | None
    """Requests per second; None: from a calibration."""
    highest: float | None
    tolerance: float
    """The search ends when the interval is this narrow on either side, as a share."""
    seconds: float
    """Sending time of one run."""
    max_runs: int
    budget_s: float | None
    workload: str
    workload_spec: dict[str, Any]
    seed: int
    model: str
    engine: dict[str, Any] = Field(default={})
    target: TargetChoice = TargetChoice()
    ready_timeout_s: float = 120.0


class RateRun(Frozen):
    """One run at one rate, on requests of its own."""

    rate: float
    seed: int
    state: Literal["PASSED", "MISSED", "VOID", "FAILED"]
    """VOID: the client or the configuration was at fault; FAILED: no numbers. Neither counts."""
    run: str | None = None
    good: int | None = None
    offered: int | None = None
    ratio: float | None = None
    stable: bool | None = None
    reason: str = ""


class CapacityResult(Frozen):
    """The answer is one of four words; ``rate`` only with the first."""

    schema_version: int = CAPACITY_SCHEMA_VERSION
    id: str
    created: str
    status: str
    """complete | budget | interrupted | failed"""
    answer: Literal["rate", "below the lowest tried", "above the highest tried", "unknown"]
    rate: float | None
    """Requests per second at which half of the runs meet the target."""
    low: float | None
    high: float | None
    """95 % credible interval of ``rate``."""
    text: str
    lowest: float | None
    """Ends of the range that was searched."""
    highest: float | None
    spec: CapacitySpec
    runs: list[RateRun]
    machine: dict[str, Any]
    seconds: float
