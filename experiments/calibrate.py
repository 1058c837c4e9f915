"""Set the load of a sweep: the baseline's capacity from one short probe, then a stated share of it for
every level.

A factor shows only near the load it is meant for: too little and nothing waits, too much and the queue
grows without end. The same rate and number of requests then hold for all levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import InvalidInputError
from experiments.models import Frozen
from experiments.spec import Load, SweepSpec

PROBE_CONCURRENCY = 12
PROBE_PROMPTS = 96
PROBE_SECONDS = 8.0
"""The probe: a closed loop on the baseline; no new request after this long, so a slow machine does not pay
minutes."""
AT_ONCE_PROMPTS = 48
MIN_LOAD_S = 6.0
MAX_LOAD_S = 20.0
MIN_PROMPTS = 12
MIN_BLOCKS = 4
"""Blocks that the length of a run leaves room for, the confirmation beside them."""
DEFAULT_OVERHEAD_S = 8.0
"""Start and stop of a target and the tail of a run, when nothing has been measured yet."""


class Calibration(Frozen):
    """How the load was set. ``capacity`` in requests per second; None when the user gave the rate."""

    load: Load
    capacity: float | None = None
    utilisation: float | None = None
    overhead_s: float
    """Wall time of a run beyond the time in which it sends."""
    runs: list[str]
    text: str

    @property
    def run_s(self) -> float:
        """Expected wall time of one run."""
        rate = self.load.request_rate
        return self.overhead_s + (self.load.num_prompts / rate if rate else 0.0)


@dataclass(frozen=True)
class Probe:
    """What the closed loop on the baseline gave.

    Attributes:
        request_s: completed requests per second.
        tail_s: median time from sending a request to its last token.
        wall_s: wall time of the whole run, start and stop of the target included.
        busy_s: of that, from the first request to the last token.
    """

    run: str | None
    request_s: float
    tail_s: float
    wall_s: float
    busy_s: float


RunProbe = Callable[[], Probe]
"""Keep the baseline busy for ``PROBE_SECONDS``."""


def calibrate(spec: SweepSpec, probe: RunProbe | None, spent_s: float = 0.0) -> Calibration:
    """Choose rate and number of requests.

    Args:
        probe: measures capacity; not called when ``spec`` has a rate or sends all at once.
        spent_s: of the budget, before the first block.

    Raises:
        InvalidInputError: the probe completed nothing, so there is no capacity to take a share of.
    """
    if spec.request_rate is not None or spec.all_at_once or probe is None:
        overhead = DEFAULT_OVERHEAD_S
        count = spec.num_prompts or _prompts(spec, spec.request_rate, overhead, spent_s)
        rate = "all at once" if spec.request_rate is None else f"{spec.request_rate:.3g} requests/s"
        load = Load(request_rate=spec.request_rate, num_prompts=count)
        return Calibration(load=load, overhead_s=overhead, runs=[], text=f"{count} requests, {rate} (given)")
    found = probe()
    if not found.request_s > 0:
        raise InvalidInputError(
            "request-rate", "calibrated", "given by hand: the calibration completed no request"
        )
    # The tail beyond the last arrival: about one request's time under load.
    overhead = max(1.0, found.wall_s - found.busy_s) + min(found.tail_s, 5.0)
    rate_rps = float(f"{found.request_s * spec.utilisation:.3g}")
    count = spec.num_prompts or _prompts(spec, rate_rps, overhead, spent_s + found.wall_s)
    text = (
        f"capacity {found.request_s:.2f} requests/s ({PROBE_CONCURRENCY} at a time on the baseline); "
        f"{spec.utilisation:.0%} of it: {rate_rps:.3g} requests/s, {count} requests a run"
    )
    return Calibration(
        load=Load(request_rate=rate_rps, num_prompts=count),
        capacity=found.request_s,
        utilisation=spec.utilisation,
        overhead_s=overhead,
        runs=[found.run] if found.run else [],
        text=text,
    )


def planned_run_s(spec: SweepSpec) -> float:
    """Wall time of a run before anything is measured: for a plan."""
    if spec.request_rate is not None and spec.num_prompts is not None:
        return DEFAULT_OVERHEAD_S + spec.num_prompts / spec.request_rate
    return DEFAULT_OVERHEAD_S + _load_seconds(spec, DEFAULT_OVERHEAD_S, 0.0)


def _prompts(spec: SweepSpec, rate: float | None, overhead_s: float, spent_s: float) -> int:
    if rate is None:
        return AT_ONCE_PROMPTS
    return max(MIN_PROMPTS, round(rate * _load_seconds(spec, overhead_s, spent_s)))


def _load_seconds(spec: SweepSpec, overhead_s: float, spent_s: float) -> float:
    """Sending time of a run: as long as lets the budget hold ``MIN_BLOCKS`` blocks and the confirmation."""
    if spec.budget_s is None:
        return MAX_LOAD_S
    runs = spec.runs_per_block * min(MIN_BLOCKS, spec.blocks) + 2 * spec.confirm_blocks
    share = 0.95 * (spec.budget_s - spent_s) / runs - overhead_s
    return min(MAX_LOAD_S, max(MIN_LOAD_S, share))
