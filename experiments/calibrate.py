"""Set the load of a sweep: the baseline's capacity from one short probe, then a stated share of it for
every level.

A factor shows only near the load it is meant for: too little and nothing waits, too much and the queue
grows without end. The same rate and number of requests then hold for all levels.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import InvalidInputError
from experiments.models import Frozen
from experiments.spec import Load, SweepSpec
from workbench.calibrate import PROBE_CONCURRENCY, Capacity

AT_ONCE_PROMPTS = 48
MIN_LOAD_S = 5.0
MAX_LOAD_S = 20.0
MIN_PROMPTS = 12
FEWEST_PROMPTS = 8
MIN_BLOCKS = 4
"""Blocks that the length of a run leaves room for, the confirmation beside them."""
FEWEST_BLOCKS = 3
"""Blocks that a short budget is cut for: fewer levels and shorter runs before fewer blocks."""
DEFAULT_OVERHEAD_S = 7.0
"""Start, warm-up and stop of a target and the tail of a run, when nothing has been measured yet."""
PROBE_WALL_S = 15.0
"""Of the probe, before anything has been measured."""

RunProbe = Callable[[], Capacity]
"""Keep the baseline busy for a few seconds."""


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
    return DEFAULT_OVERHEAD_S + _load_seconds(spec, DEFAULT_OVERHEAD_S, PROBE_WALL_S)


def affordable_runs(budget_s: float) -> int:
    """Runs of the shortest useful length that a budget holds, the probe taken off."""
    return int((budget_s - PROBE_WALL_S) / (DEFAULT_OVERHEAD_S + MIN_LOAD_S))


def _prompts(spec: SweepSpec, rate: float | None, overhead_s: float, spent_s: float) -> int:
    if rate is None:
        return AT_ONCE_PROMPTS
    count = max(MIN_PROMPTS, round(rate * _load_seconds(spec, overhead_s, spent_s)))
    if spec.budget_s is not None and spec.blocks > 1:
        # A slow machine sends few requests a second: rather shorter runs than a single block.
        two_blocks_s = 0.95 * (spec.budget_s - spent_s) / (2 * spec.runs_per_block) - overhead_s
        count = max(FEWEST_PROMPTS, min(count, int(rate * two_blocks_s)))
    return count


def _load_seconds(spec: SweepSpec, overhead_s: float, spent_s: float) -> float:
    """Sending time of a run: as long as lets the budget hold :data:`MIN_BLOCKS` blocks and the confirmation.

    When that would be too short to measure anything, the confirmation goes first, then blocks, down to two:
    without a second block there is no interval at all.
    """
    if spec.budget_s is None:
        return MAX_LOAD_S
    usable = 0.95 * (spec.budget_s - spent_s)
    for blocks, pairs in ((MIN_BLOCKS, spec.confirm_blocks), (FEWEST_BLOCKS, 0), (2, 0)):
        share = usable / (spec.runs_per_block * min(blocks, spec.blocks) + 2 * pairs) - overhead_s
        if share >= MIN_LOAD_S:
            return min(MAX_LOAD_S, share)
    return MIN_LOAD_S
