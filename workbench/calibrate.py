"""A short run that tells what rate a target can take: a closed loop, bounded in time.

A closed loop keeps a fixed number of requests in the system, so it settles at the target's own pace within
a few seconds. A burst would do that too, but its time grows with the slowness of the machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from workbench import bench
from workbench.benchspec import BenchSpec
from workbench.errors import TargetError
from workbench.load.progress import ProgressCallback
from workbench.metrics import flat
from workbench.runstore import RunStore
from workloads import Arrivals

PROBE_CONCURRENCY = 12
PROBE_PROMPTS = 96
PROBE_SECONDS = 6.0
"""No new request after this long, so a slow machine does not pay minutes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the closed loop gave.

    Attributes:
        request_s: completed requests per second.
        run: the stored run.
        tail_s: median time from sending a request to its last token.
        wall_s: wall time of the whole run, start and stop of the target included.
        busy_s: of that, from the first request to the last token.
    """

    request_s: float
    run: str
    tail_s: float
    wall_s: float
    busy_s: float


def measure_capacity(
    spec: BenchSpec, store: RunStore, *, nonce: str | None = None, progress: ProgressCallback | None = None
) -> Capacity:
    """Keep the target of ``spec`` busy with its workload for :data:`PROBE_SECONDS`.

    The run is stored with the tag ``calibration``; rate, length and place in a sweep of ``spec`` are not
    used.

    Raises:
        TargetError: no request succeeded.
        KeyboardInterrupt: it was interrupted.
    """
    closed = Arrivals(kind="closed", max_concurrency=PROBE_CONCURRENCY)
    probe = spec.model_copy(
        update={
            "workload": spec.workload.model_copy(update={"arrivals": closed}),
            "rate": None,
            "max_concurrency": None,
            "duration_s": None,
            "max_seconds": PROBE_SECONDS,
            "num_requests": PROBE_PROMPTS,
            "nonce": nonce,
            "tags": (*spec.tags, "calibration"),
            "sweep": None,
            "name": "calibration",
        }
    )
    start = time.monotonic()
    run = bench.run_bench(probe, store, progress=progress)
    wall = time.monotonic() - start
    if run.manifest.status == "interrupted":
        raise KeyboardInterrupt
    metrics = run.metrics() or {}
    values = flat(metrics)
    rate = values.get("request_s")
    if run.manifest.status != "complete" or not rate:
        raise TargetError(f"calibration: {run.manifest.error or 'no request succeeded'} (run {run.id})")
    busy = (metrics.get("window") or {}).get("duration_s") or wall
    return Capacity(rate, run.id, (values.get("e2el_p50") or 0.0) / 1000.0, wall, min(busy, wall))
