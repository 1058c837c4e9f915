"""The steady part of a run, found in the run itself and stated beside the whole.

A run has a ramp (the server fills) and a drain (nothing new comes); both pull its averages. The window
here begins
where truncating the start further no longer lowers the uncertainty of the mean number of requests in
flight (MSER, the
marginal standard error rule of simulation output analysis), and ends with the last sending. A window is
only claimed
when the run has one: long enough, and without a trend in what is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.metrics.columns import Bools, Events, Floats, Requests
from workbench.metrics.flat import LATENCIES
from workbench.metrics.latency import Latencies
from workbench.metrics.stats import summary

METHOD = "mser"
BINS = 100
MIN_REQUESTS = 20
"""Fewest requests sent inside a window that is worth a name."""
MIN_SHARE = 0.25
"""Least share of the sending time that must be left."""
TREND_T = 3.0
"""The halves of the window may differ by so many standard errors (batch means), ..."""
TREND_SHARE = 0.2
"""... or by this share of the mean, whichever is more."""
BATCHES = 10


@dataclass(frozen=True, slots=True)
class Window:
    """[start, end) in ms after the origin, or the reason why there is none."""

    start: float
    end: float
    reason: str | None = None


def find_window(requests: Requests) -> Window:
    """The steady window of a run by its own concurrency."""
    sent = requests.sent[~np.isnan(requests.sent)]
    if len(sent) < MIN_REQUESTS:
        return Window(0.0, 0.0, f"{len(sent)} requests were sent, {MIN_REQUESTS} are needed")
    begin, end = float(sent.min()), float(sent.max())
    if end <= begin:
        return Window(begin, end, "all requests were sent at once: there is only a drain")
    edges = np.linspace(begin, end, BINS + 1)
    level = in_flight(requests.sent, requests.close, edges)
    first = mser(level)
    start = float(edges[first])
    inside = int(((sent >= start) & (sent <= end)).sum())
    if end - start < MIN_SHARE * (end - begin) or inside < MIN_REQUESTS:
        return Window(start, end, "it does not settle: the number in flight changes until the end")
    if _drifts(level[first:]):
        return Window(
            start, end, "it does not settle: the number in flight has a trend (a queue grows or empties)"
        )
    return Window(start, end)


def in_flight(start: Floats, end: Floats, edges: Floats) -> Floats:
    """[bins] Time-averaged number of intervals [start, end) under way in each bin."""
    known = ~(np.isnan(start) | np.isnan(end))
    begin, stop = start[known], end[known]

    def area(until: Floats) -> Floats:
        """Interval time before each of ``until``: sum of min(x, until) over ends minus over starts."""
        total: Floats = _clipped_sum(stop, until) - _clipped_sum(begin, until)
        return total

    level: Floats = np.diff(area(edges)) / np.diff(edges)
    return level


def _clipped_sum(values: Floats, limits: Floats) -> Floats:
    ordered = np.sort(values)
    upto = np.concatenate((np.zeros(1), np.cumsum(ordered)))
    below = np.searchsorted(ordered, limits)
    out: Floats = upto[below] + (len(ordered) - below) * limits
    return out


def mser(series: Floats) -> int:
    """How many leading values to cut so that var/n of the rest is least; at most half of them are
    considered."""
    count = len(series)
    rest = np.arange(count, 0, -1, dtype=np.float64)
    sums = np.cumsum(series[::-1])[::-1]
    squares = np.cumsum((series * series)[::-1])[::-1]
    spread = np.maximum(squares / rest - (sums / rest) ** 2, 0.0) / rest
    return int(np.argmin(spread[: max(1, count // 2)]))


def _drifts(level: Floats) -> bool:
    batches = np.array([part.mean() for part in np.array_split(level, BATCHES)])
    half = BATCHES // 2
    first, second = batches[:half], batches[half:]
    error = float(np.sqrt(first.var(ddof=1) / half + second.var(ddof=1) / half))
    allowed = max(TREND_T * error, TREND_SHARE * float(batches.mean()))
    return abs(float(second.mean() - first.mean())) > allowed


def steady_state(requests: Requests, events: Events, latencies: Latencies) -> dict[str, Any]:
    """The ``steady`` part of ``metrics.json``: latencies of the requests sent inside the window, and
    rates by tokens'
    and completions' own time, with 95 % intervals from ten batch means."""
    window = find_window(requests)
    if window.reason is not None:
        return {"found": False, "reason": window.reason, "method": METHOD}
    inside: Bools = (requests.sent >= window.start) & (requests.sent <= window.end)
    sent, served = int(inside.sum()), int((inside & requests.ok).sum())
    needed = max(MIN_REQUESTS, math.ceil(sent / 2))
    if served < needed:
        # A server that has died looks very steady.
        reason = f"{served} of {sent} requests in it succeeded, {needed} are needed"
        return {"found": False, "reason": reason, "method": METHOD}
    samples = latencies.samples(inside)
    return {
        "found": True,
        "method": METHOD,
        "window": {
            "start_ns": requests.origin_ns + round(window.start * 1e6),
            "end_ns": requests.origin_ns + round(window.end * 1e6),
            "duration_s": (window.end - window.start) / 1e3,
        },
        "requests": int(inside.sum()),
        "latency": {name: summary(samples[name]) for name in LATENCIES},
        "throughput": _rates(requests, events, window),
        "mean_concurrency": float(
            in_flight(requests.sent, requests.close, np.array([window.start, window.end]))[0]
        ),
    }


def _rates(requests: Requests, events: Events, window: Window) -> Mapping[str, Any]:
    edges = np.linspace(window.start, window.end, BATCHES + 1)
    seconds = np.diff(edges) / 1e3
    tokens, _ = np.histogram(events.time, edges, weights=events.tokens.astype(np.float64))
    answered = ~np.isnan(requests.first) & ~np.isnan(requests.prompt_tokens)
    prompts, _ = np.histogram(requests.first[answered], edges, weights=requests.prompt_tokens[answered])
    done, _ = np.histogram(requests.last[requests.ok], edges)
    out: dict[str, Any] = {}
    for name, counted in (("output_tok_s", tokens), ("input_tok_s", prompts), ("request_s", done)):
        batches = counted / seconds
        mean = float(batches.mean())
        # Student's t, 9 degrees of freedom, 97.5 %.
        half = 2.2622 * float(batches.std(ddof=1)) / float(np.sqrt(BATCHES))
        out[name] = mean
        out[f"{name}_ci"] = [max(0.0, mean - half), mean + half]
    return out
