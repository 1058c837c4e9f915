"""The real runner of cells: ``workbench.bench`` against the builtin engine, a fresh server process a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.calibrate import PROBE_CONCURRENCY, PROBE_PROMPTS, PROBE_SECONDS, Probe
from experiments.cells import CellOutcome
from experiments.factors import engine_value
from experiments.metric_info import GOOD, OFFERED, WINDOW
from experiments.models import Cell
from experiments.spec import Load, SweepSpec
from workbench.benchspec import BenchSpec, Deadlines
from workbench.manifest import SweepRef
from workloads import Arrivals, WorkloadSpec

if TYPE_CHECKING:
    from workbench.runstore import Run, RunStore

LONGEST_REQUEST_S = 300.0
"""A request that takes longer is given up: a level that can't keep up ends as failed requests, not as a
hang."""


class BenchRunner:
    """Runs cells and the calibration of one sweep with ``run_bench``."""

    def __init__(self, spec: SweepSpec, store: RunStore, sweep_id: str = "") -> None:
        self._spec = spec
        self._store = store
        self._workload = WorkloadSpec.model_validate(spec.workload_spec)
        self.sweep_id = sweep_id

    def __call__(self, cell: Cell, load: Load) -> CellOutcome:
        place = SweepRef(id=self.sweep_id, level=cell.level, block=cell.block, position=cell.position)
        return outcome_of(
            self._bench(
                self._workload,
                cell.level,
                rate=load.request_rate,
                num_requests=load.num_prompts,
                seed=cell.seed,
                nonce=cell.nonce,
                sweep=place,
                tags=("sweep", cell.phase),
            )
        )

    def probe(self) -> Probe:
        """A closed loop on the baseline for a few seconds: its capacity for this mix."""
        busy_loop = Arrivals(kind="closed", max_concurrency=PROBE_CONCURRENCY)
        start = time.monotonic()
        run = self._bench(
            self._workload.model_copy(update={"arrivals": busy_loop}), self._spec.baseline, rate=None,
            num_requests=PROBE_PROMPTS, max_seconds=PROBE_SECONDS, seed=self._spec.seed % 2**31,
            nonce=f"calibration-{self._spec.seed}", sweep=None, tags=("sweep", "calibration"),
        )  # fmt: skip
        wall = time.monotonic() - start
        outcome = outcome_of(run)
        if outcome.state == "FAILED":
            raise RuntimeError(f"the calibration run failed: {outcome.reason}")
        values = outcome.metrics
        ok = values.get("ok") or 0.0
        busy = values.get(WINDOW) or wall
        return Probe(
            run=run.id,
            request_s=values.get("request_s") or ok / busy,
            tail_s=(values.get("e2el_p50") or 0.0) / 1000.0,
            wall_s=wall,
            busy_s=min(busy, wall),
        )

    def _bench(self, workload: WorkloadSpec, level: Any, **fields: Any) -> Run:
        from workbench.bench import run_bench

        engine = {**self._spec.engine, self._spec.field: engine_value(self._spec.field, level)}
        spec = BenchSpec.create(
            workload=workload,
            engine={"model": self._spec.model, **engine},
            slo=self._spec.slo or None,
            deadlines=Deadlines(total_s=LONGEST_REQUEST_S),
            command=tuple(sys.argv),
            **fields,
        )
        run: Run = run_bench(spec, self._store)
        return run


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
