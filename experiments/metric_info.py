"""What a flat metric is: which way is better, its unit, a short name; and its value as a response of the
sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GOOD = "counts_good"
OFFERED = "counts_offered"
WINDOW = "window_s"
"""What the goodput is made of, carried beside the flat metrics so that a ratio of small counts can be
smoothed."""

HEADLINE = ("ttft_p50", "itl_p50", "itl_p99", "output_tok_s", "goodput_ratio")
"""The columns of every sweep table."""


@dataclass(frozen=True)
class MetricInfo:
    """Attributes of a metric: ``higher_is_better``, ``unit`` ("ms", "tok/s" ...) and ``label`` for tables."""

    name: str
    higher_is_better: bool
    unit: str
    label: str


_LATENCIES = ("ttft", "ttft_sched", "itl", "icl", "tpot", "stall", "e2el", "e2el_sched")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_HIGHER = {
    "output_tok_s": ("tok/s", "output tok/s"),
    "input_tok_s": ("tok/s", "input tok/s"),
    "total_tok_s": ("tok/s", "total tok/s"),
    "request_s": ("1/s", "requests/s"),
    "goodput_s": ("1/s", "goodput"),
    "goodput_ratio": ("share", "goodput"),
}


def metric_info(name: str) -> MetricInfo | None:
    """Describe a flat metric; a group's metric (``chat/ttft_p50``) like the whole's. None: it has no better
    side."""
    base = name.rsplit("/", 1)[-1]
    prefix = name[: len(name) - len(base)]
    if base in _HIGHER:
        unit, label = _HIGHER[base]
        return MetricInfo(name, True, unit, prefix + label)
    kind, _, statistic = base.rpartition("_")
    if kind in _LATENCIES and statistic in _STATISTICS:
        return MetricInfo(name, False, "ms", f"{prefix}{kind} {statistic}")
    return None


def response(metric: str, values: Mapping[str, float | None]) -> float | None:
    """The positive number whose logarithm a sweep compares; None when the run has none.

    Goodput is a share of counts and may be 0, where a log ratio is undefined. It is smoothed as
    (good + 0.5) / (offered + 1), the usual half-count correction: a run that meets no SLO at all still has
    a finite ratio, and two runs with the same counts have the ratio 1. ``goodput_s`` is that share times the
    offered requests per second.
    """
    value = values.get(metric)
    if metric in ("goodput_ratio", "goodput_s"):
        good, offered = values.get(GOOD), values.get(OFFERED)
        if good is None or offered is None:
            return value if value is not None and value > 0 else None
        share = (good + 0.5) / (offered + 1.0)
        if metric == "goodput_ratio":
            return share
        window = values.get(WINDOW)
        return share * offered / window if window else None
    return value if value is not None and value > 0 else None
