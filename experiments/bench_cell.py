"""The real runner of cells: ``workbench.bench``, a fresh server process a run (or a server that is there)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.cells import CellOutcome
from experiments.factors import AUTO
from experiments.metric_info import GOOD, OFFERED, WINDOW
from experiments.models import Cell
from experiments.spec import Load, SweepSpec
from experiments.targets import server_command
from workbench.benchspec import BenchSpec, Deadlines
from workbench.calibrate import Capacity, measure_capacity
from workbench.manifest import SweepRef
from workloads import WorkloadSpec

if TYPE_CHECKING:
    from workbench.runstore import Run, RunStore

LONGEST_REQUEST_S = 300.0
"""A request that takes longer is given up: a level that can't keep up ends as failed requests, not as a
hang."""

WARMUP_REQUESTS = 2
"""A fresh process a run: enough to touch its code and memory once, and short, since every run pays for it."""


class BenchRunner:
    """Runs cells and the calibration of one sweep with ``run_bench``."""

    def __init__(self, spec: SweepSpec, store: RunStore, sweep_id: str = "") -> None:
        self._spec = spec
        self._store = store
        self._workload = WorkloadSpec.model_validate(spec.workload_spec)
        self.sweep_id = sweep_id

    def __call__(self, cell: Cell, load: Load) -> CellOutcome:
        from workbench.bench import run_bench

        place = SweepRef(id=self.sweep_id, level=cell.level, block=cell.block, position=cell.position)
        workload, rate = self._workload, load.request_rate
        if cell.at is not None and self._spec.across is not None:
            if self._spec.across.axis == "rate":
                rate = float(cell.at)
            else:
                workload = WorkloadSpec.model_validate(self._spec.across.workloads[cell.at])
                rate = workload.arrivals.rate or (rate if workload.arrivals.open_rate else None)
        spec = self._bench_spec(
            cell.level,
            workload=workload,
            rate=rate,
            num_requests=load.num_prompts,
            seed=cell.seed,
            nonce=cell.nonce,
            sweep=place,
            tags=("sweep", cell.phase),
        )
        return outcome_of(run_bench(spec, self._store))

    def probe(self) -> Capacity:
        """A closed loop on the baseline for a few seconds: its capacity for this mix."""
        spec = self._bench_spec(
            self._spec.baseline, workload=self._workload, seed=self._spec.seed % 2**31, tags=("sweep",)
        )
        return measure_capacity(spec, self._store, nonce=f"calibration-{self._spec.seed}")

    def _bench_spec(self, level: Any, **fields: Any) -> BenchSpec:
        spec, target = self._spec, self._spec.target
        settings = dict(spec.engine)
        names: dict[str, Any] = {}
        if spec.side == "engine":
            settings[spec.field] = None if level == AUTO else level
        if spec.side == "load":
            fields["rate" if spec.field == "request_rate" else spec.field] = level
        if target.kind == "command":
            names = {spec.factor: level, spec.field: level, "value": level}
            fields["server"] = server_command(target, spec.model, settings, names)
        elif target.kind == "attach":
            fields["base_url"] = target.base_url
        else:
            fields["engine"] = {"model": spec.model, **settings}
        return BenchSpec.create(
            model=target.served_model,
            slo=spec.slo or None,
            warmup_requests=WARMUP_REQUESTS,
            deadlines=Deadlines(total_s=LONGEST_REQUEST_S),
            ready_timeout_s=spec.ready_timeout_s,
            command=tuple(sys.argv),
            **fields,
        )


def outcome_of(run: Run) -> CellOutcome:
    """What a stored run says: DONE, VOID with the rule it breaks, or FAILED with its error.

    Raises:
        KeyboardInterrupt: the run was interrupted; so is the sweep.
    """
    from workbench.metrics import flat

    manifest = run.manifest
    if manifest.status == "interrupted":
        raise KeyboardInterrupt
    metrics = run.metrics()
    if manifest.status != "complete" or metrics is None:
        return CellOutcome(
            state="FAILED", run=run.id, reason=manifest.error or f"the run is {manifest.status}"
        )
    validity = metrics.get("validity") or {}
    reasons = [str(reason) for reason in validity.get("reasons", [])]
    valid = bool(validity.get("valid", False))
    return CellOutcome(
        state="DONE" if valid else "VOID",
        run=run.id,
        metrics={**flat(metrics), **_goodput_counts(metrics)},
        outputs=_outputs(run),
        reason="; ".join(reasons),
        retryable=not any("config" in reason for reason in reasons),
        flagged=_flagged(metrics),
        context={"target": _target(run), "machine": manifest.machine},
    )


def _goodput_counts(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    goodput = metrics.get("goodput") or {}
    window = metrics.get("window") or {}
    return {GOOD: goodput.get("good"), OFFERED: goodput.get("offered"), WINDOW: window.get("duration_s")}


def _flagged(metrics: Mapping[str, Any]) -> list[str]:
    """Flat names of the p99s that come from too few samples (n * 0.01 < 10)."""
    found = []
    parts = {"": metrics, **{f"{group}/": part for group, part in (metrics.get("groups") or {}).items()}}
    for prefix, part in parts.items():
        for name, summary in (part.get("latency") or {}).items():
            if isinstance(summary, Mapping) and summary.get("p99_flagged"):
                found += [f"{prefix}{name}_p99", f"{prefix}{name}_max"]
    return found


def _outputs(run: Run) -> dict[str, str]:
    table = run.table("requests")
    if table is None or table.empty:
        return {}
    done = table[(table["phase"] == "measure") & (table["status"] == "ok") & table["output_sha256"].notna()]
    return {
        str(index): str(digest)[:16]
        for index, digest in zip(done["index"], done["output_sha256"], strict=True)
    }


def _target(run: Run) -> dict[str, Any]:
    target = run.manifest.target
    return {"kind": target.kind, "model": target.model, "requested": target.requested, "echo": target.echo}
