"""``metrics.json`` from the client's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.metrics.columns import Bools, Events, Floats, Requests, read_events, read_requests
from workbench.metrics.flat import LATENCIES
from workbench.metrics.goodput import goodput
from workbench.metrics.latency import Latencies
from workbench.metrics.load import load_metrics
from workbench.metrics.stats import summary
from workbench.metrics.steady import steady_state
from workbench.metrics.validity import validity
from workbench.slo import Slo

METRICS_SCHEMA_VERSION = 1


def compute_metrics(
    requests: pa.Table,
    chunks: pa.Table,
    *,
    start_ns: int,
    loop: str,
    requested_rate: float | None,
    slo: Slo | None,
    invalid_reasons: Sequence[str] = (),
    client: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute everything (layout: docs/architecture.md, definitions: docs/metrics.md).

    Args:
        requests: :data:`workbench.records.REQUESTS`; only rows of phase ``measure`` count.
        chunks: :data:`workbench.records.CHUNKS`.
        start_ns: origin of the schedule, where the window begins.
        loop: open | closed | hybrid.
        requested_rate: nominal requests per second; None without one.
        invalid_reasons: what made the run invalid outside of these tables.
        client: health of the load generator, stored as it is.
    """
    rows = read_requests(requests, start_ns)
    events = read_events(chunks, requests, start_ns)
    latencies = Latencies(rows, events)
    end_ms = _end(rows)
    duration_s = max(end_ms, 0.0) / 1e3
    counts = _counts(rows, events)
    load = load_metrics(rows, loop, requested_rate, duration_s)
    latency = _summaries(latencies, None)
    return {
        "schema_version": METRICS_SCHEMA_VERSION,
        "window": {
            "start_ns": start_ns,
            "end_ns": start_ns + round(end_ms * 1e6),
            "duration_s": duration_s,
            "method": "whole_run",
        },
        "latency": latency,
        "throughput": _throughput(rows, events, duration_s),
        "goodput": None if slo is None else goodput(slo, rows.ok, latencies, duration_s),
        "counts": counts,
        "load": load,
        "steady": steady_state(rows, events, latencies),
        "client": dict(client or {}),
        "groups": {
            name: _group(rows, events, latencies, slo, duration_s, rows.in_group(name))
            for name in sorted(set(rows.group))
        },
        "validity": validity(counts, load, latency["ttft"]["p50"], invalid_reasons),
    }


def _group(
    rows: Requests, events: Events, latencies: Latencies, slo: Slo | None, duration_s: float, mine: Bools
) -> dict[str, Any]:
    return {
        "latency": _summaries(latencies, mine),
        "counts": _counts(rows, events, mine),
        "goodput": None if slo is None else goodput(slo, rows.ok, latencies, duration_s, mine),
    }


def _summaries(latencies: Latencies, mine: Bools | None) -> dict[str, Any]:
    samples = latencies.samples(mine)
    return {name: summary(samples[name]) for name in LATENCIES}


def _end(rows: Requests) -> float:
    """End of the window in ms after its start: the last token of a success, the close of anything else."""
    ends = np.where(rows.ok, rows.last, rows.close)
    ends = ends[~np.isnan(ends)]
    return float(ends.max()) if len(ends) else 0.0


def _counts(rows: Requests, events: Events, mine: Bools | None = None) -> dict[str, Any]:
    chosen = np.ones(len(rows), np.bool_) if mine is None else mine
    picked = np.flatnonzero(chosen)
    statuses = Counter(rows.status[i] for i in picked)
    failed = (rows.error_class[i] or "unknown" for i in picked if rows.status[i] == "failed")
    answered = chosen & ~np.isnan(rows.first)
    return {
        "offered": len(picked),
        "ok": statuses["ok"],
        "failed": statuses["failed"],
        "cancelled": statuses["cancelled"],
        "errors": dict(Counter(failed)),
        "input_tokens": _total(rows.prompt_tokens[answered]),
        "cached_tokens": _total(rows.cached_tokens[answered]),
        "output_tokens": int(events.tokens[chosen[events.owner]].sum()),
    }


def _total(values: Floats) -> int | None:
    """None when no request told: not known is not 0."""
    known = values[~np.isnan(values)]
    return int(known.sum()) if len(known) else None


def _throughput(rows: Requests, events: Events, duration_s: float) -> dict[str, float | None]:
    """Tokens and completions by their own time inside the window, per second.

    A prompt counts when its first output token arrives: by then it was computed.
    """
    if duration_s <= 0:
        return dict.fromkeys(("output_tok_s", "input_tok_s", "total_tok_s", "request_s"))
    end = duration_s * 1e3 + 1e-6  # the last token ends the window and belongs to it
    output = float(events.tokens[(events.time >= 0) & (events.time <= end)].sum()) / duration_s
    read = rows.prompt_tokens[(rows.first >= 0) & (rows.first <= end)]
    inputs = float(np.nansum(read)) / duration_s if len(read) and not np.isnan(read).all() else None
    done = rows.ok & (rows.last >= 0) & (rows.last <= end)
    return {
        "output_tok_s": output,
        "input_tok_s": inputs,
        "total_tok_s": None if inputs is None else output + inputs,
        "request_s": float(done.sum()) / duration_s,
    }
