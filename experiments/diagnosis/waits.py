"""The way to the first token of the slowest requests, cut into what they waited for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from engine.trace.records import AdmissionStop
from experiments.diagnosis.bundle import Floats, RunBundle
from experiments.diagnosis.step_model import StepModel
from workbench.timeline.segments import CHUNK_GAP, PREEMPTED, PREFILL, QUEUE, RECOMPUTE
from workbench.timeline.split import FRONT_END, RequestSplit

COHORT_SHARE = 0.1
COHORT_LEAST = 5
LONG_RATIO = 4.0
"""A prompt this many times the median is a long one."""
IN_STEP = "in_step"


@dataclass(frozen=True, slots=True)
class Waits:
    """Sums over the cohort, ns. ``refused`` is queue time by what stopped admission; queue time before the
    first plan that could have admitted the request is not in it: nobody refused anything then.
    """

    cohort: list[RequestSplit]
    total: float
    """Time to first token, from when the request was due."""
    client_lag: float
    held_back: float
    front_end: float
    refused: dict[str, float]
    chunk_gap: float
    others: float
    """Own prefill steps as far as they computed for others."""
    behind_long: float
    """Before the first plan, while a step ran that was mostly somebody's long prompt."""
    preempted: float
    long_share: float
    """Of the tokens computed while they were refused: those of long prompts."""
    refused_rows: list[int]
    """Ids of the steps that refused, in order, the first ones."""
    refused_cost_ns: Floats
    """What the steps that refused somebody cost, by the model."""

    @property
    def blocked(self) -> float:
        return sum(self.refused.values()) + self.chunk_gap + self.others + self.behind_long

    @property
    def alone(self) -> float:
        """What remains when nothing is waited for."""
        return self.total - self.client_lag - self.front_end - self.blocked - self.preempted


def slowest(bundle: RunBundle) -> list[RequestSplit]:
    """The slowest tenth by time to first token from when it was due, at least five."""
    answered = sorted(bundle.answered, key=lambda s: -_ttft(s))
    return answered[: max(COHORT_LEAST, round(COHORT_SHARE * len(answered)))]


def _ttft(one: RequestSplit) -> int:
    return (one.first_ns or one.sent_ns) - one.sent_ns + one.client_lag_ns


def measure_waits(bundle: RunBundle, model: StepModel) -> Waits:
    """Look at the slowest requests of ``bundle``."""
    steps = bundle.steps
    cohort = slowest(bundle)
    period = _periods(bundle)
    by_stop = {stop: _running_sum(np.where(steps.stop == stop, period, 0.0)) for stop in AdmissionStop}
    long_tokens, all_tokens = _running_sum(_long_tokens(bundle)), _running_sum(steps.tokens)
    mostly_long = _long_tokens(bundle) >= 0.5 * np.maximum(steps.tokens, 1.0)
    refused: dict[str, float] = defaultdict(float)
    others = behind_long = long_sum = token_sum = 0.0
    touched = np.zeros(len(steps), bool)
    parts: dict[str, float] = defaultdict(float)
    for one in cohort:
        for name, value in (one.first_parts or {}).items():
            parts[name] += value
        first_step = _first_step(one, bundle)
        if first_step is not None and one.life is not None:
            begin = int(np.searchsorted(steps.times.planned, one.life.taken_ns, side="left"))
            if begin < first_step:
                for stop, sums in by_stop.items():
                    refused[stop.value] += float(sums[first_step] - sums[begin])
                long_sum += float(long_tokens[first_step] - long_tokens[begin])
                token_sum += float(all_tokens[first_step] - all_tokens[begin])
                touched[begin:first_step] = True
            before = min(begin, first_step) - 1
            if before >= 0 and mostly_long[before]:
                behind_long += max(0, int(steps.times.end[before]) - one.life.submitted_ns)
        others += _others(one, bundle, model)
    return Waits(
        cohort=cohort,
        total=float(sum(_ttft(one) for one in cohort)),
        client_lag=float(sum(one.client_lag_ns for one in cohort)),
        held_back=float(sum(one.held_back_ns for one in cohort)),
        front_end=parts[FRONT_END],
        refused={stop: ns for stop, ns in refused.items() if ns > 0},
        chunk_gap=parts[CHUNK_GAP],
        others=others,
        behind_long=behind_long,
        preempted=parts[PREEMPTED] + parts[RECOMPUTE],
        long_share=long_sum / token_sum if token_sum else 0.0,
        refused_rows=[int(i) for i in steps.ids[touched][:20]],
        refused_cost_ns=model.cost_ns(steps)[touched],
    )


def share_of_all(bundle: RunBundle, model: StepModel) -> float:
    """Of the time of all answered requests: queue, gaps between chunks, others' tokens in own prefills."""
    waited = total = 0.0
    for one in bundle.answered:
        parts = one.first_parts or {}
        waited += parts[QUEUE] + parts[CHUNK_GAP] + _others(one, bundle, model)
        total += one.e2el_ns
    return min(1.0, waited / total) if total else 0.0


def _periods(bundle: RunBundle) -> Floats:
    """From each plan to the next one: what a refusal in it costs."""
    planned, end = bundle.steps.times.planned, bundle.steps.times.end
    if not len(planned):
        return np.empty(0, np.float64)
    until = np.append(planned[1:], end[-1])
    return (until - planned).astype(np.float64)


def _running_sum(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _first_step(one: RequestSplit, bundle: RunBundle) -> int | None:
    for segment in one.life.segments if one.life is not None else ():
        if segment.step_id is not None:
            return bundle.steps.times.index(segment.step_id)
    return None


def _long_tokens(bundle: RunBundle) -> Floats:
    """Prefill tokens of long prompts in each step."""
    found = np.zeros(len(bundle.steps))
    if not bundle.lives:
        return found
    median = float(np.median([life.prompt_tokens for life in bundle.lives]))
    for life in bundle.lives:
        if life.prompt_tokens < LONG_RATIO * max(median, 1.0):
            continue
        for segment in life.segments:
            place = bundle.steps.times.index(segment.step_id) if segment.step_id is not None else None
            if place is not None:
                found[place] += segment.tokens or 0
    return found


def _others(one: RequestSplit, bundle: RunBundle, model: StepModel) -> float:
    """Time of the prefill steps that went into other requests' tokens, by the fitted cost."""
    found = 0.0
    for segment in one.life.segments if one.life is not None else ():
        place = bundle.steps.times.index(segment.step_id) if segment.step_id is not None else None
        if segment.state != PREFILL or place is None:
            continue
        duration = segment.end_ns - segment.start_ns
        tokens = float(bundle.steps.tokens[place])
        variable = max(0.0, duration - model.fixed)
        found += variable * (1.0 - min(1.0, (segment.tokens or 0) / tokens)) if tokens else 0.0
    return found
