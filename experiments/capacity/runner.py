"""One run at one rate with ``workbench.bench``, and what it says."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from experiments.bench_cell import LONGEST_REQUEST_S
from experiments.capacity.models import CapacitySpec, RateRun
from experiments.capacity.saturation import judge_stability
from experiments.targets import server_command
from workbench.benchspec import BenchSpec, Deadlines
from workbench.calibrate import Capacity, measure_capacity
from workbench.runstore import Run, RunStore
from workbench.slo import parse_slo
from workloads import WorkloadSpec

FEWEST_REQUESTS = 20
_OURS = ("the client was late", "the schedule was not kept", "config:", "interrupted")
"""Beginnings of reasons that say nothing about the target's capacity: the run does not count."""


class RateRunner:
    """Runs rates against the target of ``spec``; a fresh process each time unless it is attached."""

    def __init__(self, spec: CapacitySpec, store: RunStore) -> None:
        self._spec = spec
        self._store = store
        self._workload = WorkloadSpec.model_validate(spec.workload_spec)
        self.machine: dict[str, Any] = {}

    def __call__(self, rate: float, seed: int) -> RateRun:
        from workbench.bench import run_bench

        bounds = dict(parse_slo(self._spec.slo).bounds)
        count = max(FEWEST_REQUESTS, round(rate * self._spec.seconds))
        spec = self._bench_spec(
            rate=rate, num_requests=count, seed=seed, nonce=f"capacity-{self._spec.seed}-{seed}",
            # What comes later than any objective allows is missed already: don't wait for a long queue.
            max_seconds=count / rate * 1.5 + 1.0,
            grace_s=min(30.0, 2.0 * max(bounds.values()) / 1000.0 + 2.0),
        )  # fmt: skip
        run = run_bench(spec, self._store)
        if run.manifest.status == "interrupted":
            raise KeyboardInterrupt
        self.machine = self.machine or dict(run.manifest.machine)
        return rate_run(run, rate, seed, self._spec.target_ratio)

    def probe(self) -> Capacity:
        """The pace of a closed loop: a first idea of the range."""
        return measure_capacity(self._bench_spec(seed=self._spec.seed), self._store)

    def _bench_spec(self, **fields: Any) -> BenchSpec:
        spec, target = self._spec, self._spec.target
        if target.kind == "command":
            fields["server"] = server_command(target, spec.model, spec.engine, {})
        elif target.kind == "attach":
            fields["base_url"] = target.base_url
        else:
            fields["engine"] = {"model": spec.model, **spec.engine}
        return BenchSpec.create(
            workload=self._workload,
            model=target.served_model,
            slo=spec.slo,
            deadlines=Deadlines(total_s=LONGEST_REQUEST_S),
            ready_timeout_s=spec.ready_timeout_s,
            tags=("capacity",),
            command=tuple(sys.argv),
            **fields,
        )


def rate_run(run: Run, rate: float, seed: int, target_ratio: float) -> RateRun:
    """What a stored run says about its rate. Failed and cancelled requests are bad ones, not a fault of the
    run: a target beyond its capacity sheds load."""
    metrics = run.metrics()
    common: dict[str, Any] = {"rate": rate, "seed": seed, "run": run.id}
    if run.manifest.status != "complete" or metrics is None:
        return RateRun(**common, state="FAILED", reason=run.manifest.error or run.manifest.status)
    reasons = [str(reason) for reason in (metrics.get("validity") or {}).get("reasons", [])]
    ours = [reason for reason in reasons if reason.startswith(_OURS)]
    goodput = metrics.get("goodput") or {}
    good, offered = goodput.get("good"), goodput.get("offered")
    if ours or not offered:
        return RateRun(**common, state="VOID", reason=ours[0] if ours else "no request was offered")
    stability = _stability(run)
    ratio = good / offered
    passed = ratio >= target_ratio and stability.stable is not False
    reason = stability.text if stability.stable is False else f"{good} of {offered} good"
    return RateRun(
        **common, state="PASSED" if passed else "MISSED", good=good, offered=offered, ratio=ratio,
        stable=stability.stable, reason=reason,
    )  # fmt: skip


def _stability(run: Run) -> Any:
    from experiments.capacity.saturation import Stability

    table = run.table("requests")
    if table is None:
        return Stability(None, "no requests stored")
    rows = table[table["phase"] == "measure"]
    sent = rows["sent_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9
    first = rows["first_token_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9
    closed = rows["close_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9
    known = ~np.isnan(sent)
    sent, first, closed = sent[known], first[known], closed[known]
    return judge_stability(sent, first - sent, np.where(np.isnan(closed), np.inf, closed))
