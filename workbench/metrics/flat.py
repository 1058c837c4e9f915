"""Flat names of metrics, as sweeps, tables and figures use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LATENCIES = ("ttft", "ttft_sched", "itl", "icl", "tpot", "stall", "e2el", "e2el_sched")
STATISTICS = ("p50", "p90", "p95", "p99", "mean", "max")


def flat(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Flatten ``metrics.json`` to ``{"ttft_p50": ms, ..., "output_tok_s": ..., "chat/ttft_p50": ...}``.

    Latencies are in ms, rates per second. Every name of the run as a whole is always there, None when it was
    not measured; per group only what was measured. Damaged values become None: any stored file can be listed.
    """
    out = _latencies(metrics.get("latency"), "")
    throughput = _mapping(metrics.get("throughput"))
    for name in ("output_tok_s", "input_tok_s", "total_tok_s", "request_s"):
        out[name] = _number(throughput.get(name))
    goodput = _mapping(metrics.get("goodput"))
    out["goodput_s"] = _number(goodput.get("good_s"))
    out["goodput_ratio"] = _number(goodput.get("ratio"))
    counts = _mapping(metrics.get("counts"))
    for name in ("offered", "ok", "failed", "cancelled", "input_tokens", "cached_tokens", "output_tokens"):
        out[name] = _number(counts.get(name))
    load = _mapping(metrics.get("load"))
    for name in ("achieved_rate", "lag_p99_ms", "peak_concurrency", "mean_concurrency"):
        out[name] = _number(load.get(name))
    for group, values in _mapping(metrics.get("groups")).items():
        part = _mapping(values)
        prefix = f"{group}/"
        measured = _latencies(part.get("latency"), prefix)
        out.update({name: value for name, value in measured.items() if value is not None})
        ratio = _number(_mapping(part.get("goodput")).get("ratio"))
        if ratio is not None:
            out[f"{prefix}goodput_ratio"] = ratio
    return out


def _latencies(latency: object, prefix: str) -> dict[str, float | None]:
    known = _mapping(latency)
    out: dict[str, float | None] = {}
    for name in LATENCIES:
        summary = _mapping(known.get(name))
        for statistic in STATISTICS:
            value = summary.get(statistic)
            known_number = type(value) is float and math.isfinite(value)  # the usual case, without a call
            out[f"{prefix}{name}_{statistic}"] = value if known_number else _number(value)
    return out


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
