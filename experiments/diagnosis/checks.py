"""Tests of the data before anything is concluded from it: coverage, sums, Little's law, enough load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.diagnosis.bundle import Floats, Ints, RunBundle
from experiments.diagnosis.models import Check

MIN_COVERAGE = 0.95
"""Of requests and of tokens: less, and what is missing may be what matters."""
LITTLE_GOOD, LITTLE_LIMIT = 0.05, 0.15
MIN_REQUESTS = 10
MIN_STEPS = 50
MIN_IN_FLIGHT = 1.2
"""Mean requests in flight below which nothing competes with anything."""


@dataclass(frozen=True, slots=True)
class Vetting:
    """``no_trace``: why nothing that needs the engine's trace may be said; None: the trace is good.
    ``no_load``: why nothing about behaviour under load may be said.
    """

    checks: list[Check]
    no_trace: str | None
    no_load: str | None


def vet(bundle: RunBundle) -> Vetting:
    """Run every check."""
    coverage, sums, little, load = _coverage(bundle), _sums(bundle), _little(bundle), _load(bundle)
    no_trace = next((check.text for check in (coverage, sums, little) if not check.ok), None)
    return Vetting([coverage, sums, little, load], no_trace, None if load.ok else load.text)


def _coverage(bundle: RunBundle) -> Check:
    if not bundle.has_events or not len(bundle.steps):
        return Check(name="trace coverage", ok=False, value=0.0, text=f"no engine trace: {_why(bundle)}")
    finished = [one for one in bundle.splits if one.status == "ok"]
    traced = sum(one.life is not None and one.life.complete for one in finished)
    of_requests = traced / len(finished) if finished else 1.0
    # Every step samples one token for a decode, and one at the end of each prefill.
    sampled = float(bundle.steps["decode_tokens"].sum()) + len(bundle.lives)
    of_tokens = min(1.0, sampled / bundle.all_output_tokens) if bundle.all_output_tokens else 1.0
    share = min(of_requests, of_tokens)
    lost = sum(bundle.manifest.drops.get(name, 0) for name in ("steps", "events"))
    text = f"trace coverage {share:.0%}: {of_requests:.0%} of the requests, {of_tokens:.0%} of the tokens"
    if lost:
        text += f"; {lost} rows were dropped"
    return Check(name="trace coverage", ok=share >= MIN_COVERAGE, value=share, text=text)


def _why(bundle: RunBundle) -> str:
    """Why the run has none."""
    manifest = bundle.manifest
    if manifest.status == "running":
        return "the run has not ended, or was killed"
    if manifest.status in ("failed", "interrupted"):
        return f"the run {'failed' if manifest.status == 'failed' else 'was interrupted'} before it had one"
    if manifest.target.kind == "builtin":
        return "the engine left none"
    return "only the builtin engine leaves one"


def _sums(bundle: RunBundle) -> Check:
    worst = max((abs(sum(s.parts.values()) - s.e2el_ns) for s in bundle.splits if s.parts), default=0)
    split = sum(s.parts is not None for s in bundle.splits)
    text = f"the parts of each of {split} requests sum to its e2el within {worst} ns"
    return Check(name="sum to total", ok=worst <= 1000, value=float(worst), text=text)


def _little(bundle: RunBundle) -> Check:
    """Requests that the steps counted, against the time that the events say requests were there."""
    steps = bundle.steps
    finished = [life for life in bundle.lives if life.finished_ns is not None]
    if len(finished) < MIN_REQUESTS or not len(steps):
        return Check(name="Little's law", ok=True, value=None, text="Little's law: too few requests to check")
    counted = float(((steps["num_running"] + steps["num_waiting"]) * steps.duration).sum())
    begins = np.array([life.taken_ns for life in finished], np.int64)
    ends = np.array([life.finished_ns for life in finished], np.int64)
    there = float((_step_time_until(bundle, ends) - _step_time_until(bundle, begins)).sum())
    gap = abs(counted - there) / there if there else 0.0
    word = "holds" if gap <= LITTLE_GOOD else "holds roughly" if gap <= LITTLE_LIMIT else "is broken"
    text = f"Little's law {word}: steps and events disagree by {gap:.1%} on the requests in flight"
    return Check(name="Little's law", ok=gap <= LITTLE_LIMIT, value=gap, text=text)


def _step_time_until(bundle: RunBundle, t_ns: Ints) -> Floats:
    """Time spent inside steps before each moment."""
    times = bundle.steps.times
    total = np.concatenate([[0.0], np.cumsum(bundle.steps.duration)])
    i = np.searchsorted(times.start, t_ns, side="right")
    inside = np.where(
        i > 0, np.minimum(t_ns, times.end[np.maximum(i - 1, 0)]) - times.start[np.maximum(i - 1, 0)], 0
    )
    result: Floats = total[np.maximum(i - 1, 0)] + inside
    return result


def _load(bundle: RunBundle) -> Check:
    n = len(bundle.splits)
    begin, end = bundle.window
    mean = sum(s.e2el_ns for s in bundle.splits) / (end - begin) if end > begin else 0.0
    ok = n >= MIN_REQUESTS and mean >= MIN_IN_FLIGHT
    text = f"{n} requests, {mean:.1f} in flight on average"
    if not ok:
        text = f"insufficient load: {text} (at least {MIN_REQUESTS} and {MIN_IN_FLIGHT} are needed)"
    return Check(name="load", ok=ok, value=mean, text=text)
