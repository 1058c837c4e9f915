"""Family 2: the accelerator idles while eligible work is there. Who keeps it waiting?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.diagnosis.bundle import Floats, RunBundle
from experiments.diagnosis.checks import MIN_STEPS, Vetting
from experiments.diagnosis.models import Confidence, Effect, Evidence, Family, Finding, Rival, abstain
from experiments.diagnosis.next_step import sweep_line

FAMILY = Family.ACCELERATOR_GAPS
MIN_BUBBLE = 0.15
"""Idle share of the time with eligible work, from which it is worth an experiment."""
STARVED = 0.1
"""Share of its time that the engine's thread waits for a core."""
PHASES = ("sample", "output", "between", "schedule", "prepare")
_CAUSE = {
    "sample": "synchronisation",
    "output": "output",
    "between": "batch_forming",
    "schedule": "scheduling",
    "prepare": "prepare",
}
_WORDS = {
    "sample": "results are read back and sampled (synchronisation)",
    "output": "outputs are handed over",
    "between": "the next batch is formed (between steps)",
    "schedule": "the scheduler plans",
    "prepare": "the CPU prepares the inputs",
}


@dataclass(frozen=True, slots=True)
class Bubbles:
    """Idle time of the accelerator between two forwards, with requests in flight, ns."""

    idle: float
    forward: float
    by_phase: dict[str, float]
    per_gap: Floats
    step_ids: list[int]
    """Steps that came after the longest gaps."""

    @property
    def share(self) -> float:
        whole = self.idle + self.forward
        return self.idle / whole if whole else 0.0


def measure_bubbles(bundle: RunBundle) -> Bubbles | None:
    """None: the executor left no stamps of its phases.

    A gap runs from the end of one forward to the beginning of the next; its parts are cut at the stamps in
    between. Time between two steps in which nobody was in flight is no bubble.
    """
    steps, chosen = bundle.steps, bundle.measured_steps
    names = ("t_forward", "t_sample", "t_end", "t_start", "t_schedule", "t_prepare")
    forward, sample, end, start, schedule, prepare = (steps[name][chosen] for name in names)
    if len(forward) < MIN_STEPS or bool(np.isnan(np.concatenate([forward, prepare])).any()):
        return None
    begin_gap, end_gap = forward[:-1], np.maximum(prepare[1:], forward[:-1])
    ends_ns = steps.times.end[chosen][:-1]
    eligible = bundle.in_flight.at(ends_ns) > 0
    unknown = steps["device_unknown"]
    # Behind a step whose end on the device is not known, the device may be busy.
    known = unknown[chosen][:-1] == 0.0 if len(unknown) else np.ones(len(begin_gap), bool)
    by_phase: dict[str, float] = {}
    per_gap = np.zeros(len(begin_gap))
    at = begin_gap
    for name, until in zip(
        PHASES, (sample[:-1], end[:-1], start[1:], schedule[1:], prepare[1:]), strict=True
    ):
        cut = np.clip(until, at, end_gap)
        part = np.where(known & (eligible | (name != "between")), cut - at, 0.0)
        by_phase[name] = float(part.sum())
        per_gap += part
        at = cut
    longest = np.argsort(-per_gap)[:10]
    ids = [int(i) for i in steps.ids[chosen][1:][longest]]
    busy = float((forward[1:] - end_gap).sum() + forward[0] - prepare[0])
    return Bubbles(float(per_gap.sum()), busy, by_phase, per_gap, ids)


def diagnose_gaps(bundle: RunBundle, vetting: Vetting, baseline: RunBundle | None = None) -> Finding:
    """Verdict of the family; ``baseline`` (a healthy run) gives the idle share that is normal here."""
    reason = vetting.no_trace or vetting.no_load
    if reason:
        return abstain(FAMILY, reason)
    bubbles = measure_bubbles(bundle)
    if bubbles is None:
        return abstain(FAMILY, f"fewer than {MIN_STEPS} steps, or no stamps of the phases inside a step")
    usual = measure_bubbles(baseline) if baseline is not None else None
    normal = usual.share if usual is not None else 0.0
    waiting = _starvation(bundle)
    if bubbles.share < max(MIN_BUBBLE, 1.5 * normal):
        beside = f" (baseline {normal:.1%})" if usual is not None else ""
        return abstain(
            FAMILY,
            f"no forward runs for {bubbles.share:.1%} of the time with requests in flight{beside}: no gap "
            "worth a cause",
        )
    phase, ns = max(bubbles.by_phase.items(), key=lambda item: item[1])
    starved = waiting is not None and waiting >= STARVED
    cause = "starvation" if starved else _CAUSE[phase]
    reason = "the engine's thread waits for a CPU core" if starved else _WORDS[phase]
    part = ns / bubbles.idle
    profiled = "profiled" in bundle.manifest.tags
    confidence: Confidence = "high" if (part >= 0.6 or starved) and not profiled else "medium"
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause=cause,
        claim=f"No forward runs for {bubbles.share:.0%} of the time with requests in flight: {reason}.",
        effect=Effect(
            name="between two forwards",
            value=float(bubbles.per_gap.mean()) / 1e6,
            unit="ms a step",
            share=bubbles.share,
        ),
        evidence=_evidence(bubbles, waiting),
        rivals=_rivals(bundle, waiting, part, phase),
        confidence=confidence,
        next=_next(cause, bundle),
    )


def _evidence(bubbles: Bubbles, waiting: float | None) -> list[Evidence]:
    rows: list[int | str] = list(bubbles.step_ids)
    found = [
        Evidence(
            text=f"{ns / bubbles.idle:.0%} of that time {_WORDS[phase]}",
            value=ns / 1e6,
            unit="ms",
            table="steps",
            rows=rows,
        )
        for phase, ns in sorted(bubbles.by_phase.items(), key=lambda item: -item[1])
        if ns > 0.02 * bubbles.idle
    ]
    p50, p99 = np.quantile(bubbles.per_gap, [0.5, 0.99]) / 1e6
    found.append(
        Evidence(
            text=f"gap between two forwards: median {p50:.2f} ms, p99 {p99:.2f} ms",
            value=float(p50),
            unit="ms",
        )
    )
    if waiting is not None:
        found.append(
            Evidence(
                text=f"the engine's thread waits {waiting:.0%} of the time for a core",
                value=waiting,
                unit="share",
            )
        )
    return found


def _rivals(bundle: RunBundle, waiting: float | None, part: float, phase: str) -> list[Rival]:
    throttled = bundle.samples("system.cgroup_throttled")
    tags = bundle.manifest.tags
    return [
        Rival(name="no work", ruled_out=True, why="only gaps with requests in flight are counted"),
        Rival(
            name="CPU starvation",
            ruled_out=waiting is not None and waiting < STARVED,
            why="no scheduler statistics were sampled"
            if waiting is None
            else f"the busiest engine thread waits {waiting:.1%} of the time for a core",
        ),
        Rival(
            name="cgroup throttling",
            ruled_out=not len(throttled) or float(throttled.mean()) < 1.0,
            why="not throttled" if len(throttled) else "no CPU quota is in force here",
        ),
        Rival(
            name="profiler distortion",
            ruled_out="profiled" not in tags,
            why="the run was profiled" if "profiled" in tags else "no profiler ran",
        ),
        Rival(
            name="another phase",
            ruled_out=part >= 0.6,
            why=f"{part:.0%} of the gap is in one phase ({phase})",
        ),
    ]


def _starvation(bundle: RunBundle) -> float | None:
    """Run-queue wait share of the engine's busiest thread; None without samples."""
    busy: dict[str, float] = {}
    for _, value, source in bundle.telemetry.get("server.thread.cpu", ()):
        busy[source] = busy.get(source, 0.0) + value
    waits = bundle.telemetry.get("server.thread.run_wait", ())
    if not waits or not busy:
        return None
    busiest = max(busy, key=lambda source: busy[source])
    mine = [value for _, value, source in waits if source == busiest]
    return float(np.mean(mine)) / 100.0 if mine else 0.0


def _next(cause: str, bundle: RunBundle) -> str:
    if cause == "starvation":
        threads = int(bundle.setting("num_threads", 2))
        fewer = [n for n in (threads - 1, threads // 2) if n >= 1]
        return sweep_line(bundle, "num_threads", list(dict.fromkeys([threads, *(fewer or [2])])), "itl_p50")
    if cause == "synchronisation":
        interval = int(bundle.setting("stream_interval", 1))
        if bundle.setting("async_scheduling", False):
            return sweep_line(bundle, "stream_interval", [interval, interval * 4], "itl_p50")
    now = bool(bundle.setting("async_scheduling", False))
    return sweep_line(bundle, "async_scheduling", [now, not now], "output_tok_s")
