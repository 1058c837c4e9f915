"""One row per measured point of load: what the figures over rate and interactivity draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from experiments.capacity.models import CapacityResult
from experiments.models import SweepResult
from reports.pairing import level_key, run_order
from workbench.metrics import flat

COLUMNS = (
    *("label", "series", "loop", "valid", "n", "offered", "achieved", "concurrency"),
    *("throughput", "throughput_low", "throughput_high"),
    *("interactivity", "interactivity_low", "interactivity_high"),
    *(f"{name}_{p}" for name in ("ttft", "itl", "e2el") for p in ("p50", "p90", "p99")),
    *("goodput_s", "goodput_ratio", "p99_flagged"),
)
"""``offered`` and ``achieved`` in requests per second, ``throughput`` in output tokens per second,
``interactivity`` in tokens per second of one user: 1 / median TPOT. Missing is NaN."""


def points_of_runs(runs: Mapping[str, Mapping[str, Any] | None], series: str = "run") -> pd.DataFrame:
    """``runs``: label → ``metrics.json``."""
    return _frame(_point(label, series, metrics or {}) for label, metrics in runs.items())


def points_of_sweep(sweep: SweepResult, metrics: Mapping[str, Mapping[str, Any] | None]) -> pd.DataFrame:
    """A row per finished run of the sweep proper. ``metrics``: run id → ``metrics.json``."""
    return _frame(
        _point(level_key(cell.level), level_key(cell.level), metrics.get(cell.run) or {})
        for cell in run_order(sweep)
        if cell.run and cell.state == "DONE"
    )


def points_of_capacity(
    result: CapacityResult, metrics: Mapping[str, Mapping[str, Any] | None]
) -> pd.DataFrame:
    """A row per run of a capacity search; the rate is the one it was asked to try."""
    rows = []
    for run in result.runs:
        point = _point(f"{run.rate:.3g}/s", "capacity search", metrics.get(run.run or "") or {})
        known = run.ratio if run.ratio is not None else math.nan
        rows.append(point | {"offered": run.rate, "goodput_ratio": known, "valid": run.state != "VOID"})
    return _frame(rows)


def _frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(COLUMNS))


def _point(label: str, series: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    values = flat(metrics)
    load = _mapping(metrics.get("load"))
    latency = _mapping(metrics.get("latency"))
    tpot = _mapping(latency.get("tpot"))
    low, high = _pair(_mapping(tpot.get("ci")).get("p50"))
    steady = _pair(_mapping(_mapping(metrics.get("steady")).get("throughput")).get("output_tok_s_ci"))
    offered = load.get("requested_rate")
    offered = load.get("offered_rate") if offered is None else offered
    row: dict[str, Any] = {
        "label": label,
        "series": series,
        "loop": str(load.get("loop") or "unknown"),
        "valid": _mapping(metrics.get("validity")).get("valid") is not False,
        "n": _number(values.get("ok")),
        "offered": _number(offered),
        "achieved": _number(load.get("achieved_rate")),
        "concurrency": _number(load.get("mean_concurrency")),
        "throughput": _number(values.get("output_tok_s")),
        "throughput_low": steady[0],
        "throughput_high": steady[1],
        "interactivity": _inverse(_number(tpot.get("p50"))),
        "interactivity_low": _inverse(high),
        "interactivity_high": _inverse(low),
        "goodput_s": _number(values.get("goodput_s")),
        "goodput_ratio": _number(values.get("goodput_ratio")),
        "p99_flagged": any(_mapping(latency.get(m)).get("p99_flagged") for m in ("ttft", "itl", "e2el")),
    }
    for name in ("ttft", "itl", "e2el"):
        row |= {f"{name}_{p}": _number(values.get(f"{name}_{p}")) for p in ("p50", "p90", "p99")}
    return row


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _pair(value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        return _number(value[0]), _number(value[1])
    return math.nan, math.nan


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)


def _inverse(ms: float) -> float:
    return 1000.0 / ms if ms > 0 else math.nan
