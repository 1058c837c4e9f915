"""A short run that tells what rate a target can take."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.bench import BenchSpec, ProgressCallback, run_bench
from workbench.errors import TargetError
from workbench.runstore import RunStore
from workloads import Arrivals

BURST = 16


@dataclass(frozen=True, slots=True)
class Capacity:
    """``request_s`` requests per second were served of a burst; ``run`` is the stored run."""

    request_s: float
    run: str


def measure_capacity(
    spec: BenchSpec, store: RunStore, *, num_requests: int = BURST, progress: ProgressCallback | None = None
) -> Capacity:
    """Send ``num_requests`` of the workload at once and see how fast they are served.

    The burst keeps the server busy from end to end but for its tail, so this is near the highest rate that
    it can sustain for this mix. The run is stored with the tag ``calibration``.

    Raises:
        TargetError: no request succeeded.
    """
    workload = spec.workload.model_copy(update={"arrivals": Arrivals(kind="burst")})
    burst = spec.model_copy(
        update={
            "workload": workload,
            "rate": None,
            "max_concurrency": None,
            "duration_s": None,
            "num_requests": num_requests,
            "nonce": None,
            "tags": (*spec.tags, "calibration"),
            "sweep": None,
            "name": "calibration",
        }
    )
    run = run_bench(burst, store, progress=progress)
    if run.manifest.status == "interrupted":
        raise KeyboardInterrupt
    rate = ((run.metrics() or {}).get("throughput") or {}).get("request_s")
    if not rate:
        raise TargetError(f"calibration: no request succeeded (run {run.id})")
    return Capacity(rate, run.id)
