"""Requests measured by another tool, as a run of ours: tables where it kept each request, else only its
summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.load.record import RequestRecord, chunks_table, requests_table
from workbench.load.stream import Chunk
from workbench.manifest import ClockPair, TargetInfo
from workbench.metrics.compute import METRICS_SCHEMA_VERSION, compute_metrics
from workbench.metrics.flat import LATENCIES
from workbench.metrics.stats import PERCENTILES
from workbench.records import CHUNKS_SCHEMA_VERSION, REQUESTS_SCHEMA_VERSION
from workbench.runstore import Run, RunStore, RunWriter


@dataclass(slots=True)
class Incoming:
    """What a file of another tool says."""

    tool: str
    model: str | None = None
    base_url: str | None = None
    name: str = ""
    loop: str = "open"
    requested_rate: float | None = None
    max_concurrency: int | None = None
    endpoint: str | None = None
    requests: list[RequestRecord] = field(default_factory=list)
    """With chunks where the tool kept the time of each event."""
    clock: ClockPair | None = None
    """Where the stamps lie on both clocks, when the tool tells."""
    metrics: dict[str, Any] | None = None
    """Of files without requests: see :func:`summary_only`."""
    lacks: list[str] = field(default_factory=list)
    """What its format does not hold; noted in the run."""


def store(incoming: Incoming, store: RunStore) -> Run:
    """Write the run; tagged ``imported``."""
    writer = store.create(
        target=TargetInfo(kind="attach", base_url=incoming.base_url, model=incoming.model),
        name=incoming.name,
        tags=["imported", incoming.tool],
        workload={"name": f"{incoming.tool}-import"},
        load={
            "endpoint": incoming.endpoint,
            "rate": incoming.requested_rate,
            "max_concurrency": incoming.max_concurrency,
        },
        clock=[incoming.clock] if incoming.clock else [],
    )
    try:
        metrics = incoming.metrics if incoming.metrics is not None else _computed(incoming, writer)
        writer.write_metrics(metrics)
    except BaseException as error:
        writer.finish("failed", f"{type(error).__name__}: {error}")
        raise
    notes = [
        f"imported from {incoming.tool}",
        *(f"{incoming.tool} does not tell: {what}" for what in incoming.lacks),
    ]
    return writer.finish("complete", None, notes=notes)


def _computed(incoming: Incoming, writer: RunWriter) -> dict[str, Any]:
    records = incoming.requests
    requests, chunks = requests_table(records), chunks_table(records)
    writer.write_table("requests", requests, REQUESTS_SCHEMA_VERSION)
    has_events = any(record.chunks for record in records)
    if has_events:
        writer.write_table("chunks", chunks, CHUNKS_SCHEMA_VERSION)
    metrics = compute_metrics(
        requests,
        chunks,
        start_ns=_origin(records),
        loop=incoming.loop,
        requested_rate=incoming.requested_rate,
        slo=None,
    )
    if not has_events:
        _totals(metrics, records)
    return metrics


def _origin(records: Sequence[RequestRecord]) -> int:
    stamps = [r.intended_ns if r.intended_ns is not None else r.sent_ns for r in records]
    return min((s for s in stamps if s is not None), default=0)


def _totals(metrics: dict[str, Any], records: Sequence[RequestRecord]) -> None:
    """Without the events' own times, tokens are counted per request and spread over the whole window."""
    tokens = sum(r.output_tokens or 0 for r in records if r.status == "ok")
    seconds = metrics["window"]["duration_s"]
    metrics["counts"]["output_tokens"] = tokens
    rates = metrics["throughput"]
    rates["output_tok_s"] = tokens / seconds if seconds else None
    inputs = rates["input_tok_s"]
    rates["total_tok_s"] = rates["output_tok_s"] + inputs if seconds and inputs is not None else None
    metrics["steady"] = {"found": False, "reason": "the events' times are not known", "method": "none"}


def summary_only(
    *,
    duration_s: float,
    counts: dict[str, Any],
    throughput: dict[str, float | None],
    latency: dict[str, dict[str, Any]],
    load: dict[str, Any],
    goodput_s: float | None = None,
) -> dict[str, Any]:
    """``metrics.json`` of a tool's summary: what it does not hold is null.

    Args:
        latency: our names → the statistics that are known.
    """
    statistics = ("mean", "std", *(f"p{p}" for p in PERCENTILES), "max")
    done = counts["ok"]
    blank = {"unit": "ms", "n": done, **dict.fromkeys(statistics), "p99_flagged": done * 0.01 < 10, "ci": {}}
    known = {name: {**blank, **latency[name]} if name in latency else {**blank, "n": 0} for name in LATENCIES}
    failed = counts["failed"]
    reasons = [f"{failed} of {counts['offered']} requests failed"] if failed else []
    offered = counts["offered"]
    return {
        "schema_version": METRICS_SCHEMA_VERSION,
        "window": {"start_ns": None, "end_ns": None, "duration_s": duration_s, "method": "as told"},
        "latency": known,
        "throughput": throughput,
        "goodput": None
        if goodput_s is None
        else {
            "slo": "as told",
            "offered": offered,
            "good": round(goodput_s * duration_s),
            "good_s": goodput_s,
            "ratio": goodput_s * duration_s / offered if offered else None,
            "missed_by": {},
            "not_ok": failed,
            "vacuous": 0,
        },
        "counts": {"cancelled": 0, "errors": {}, "cached_tokens": None, **counts},
        "load": {
            "loop": "open",
            "requested_rate": None,
            "offered_rate": None,
            "achieved_rate": None,
            "lag_p50_ms": None,
            "lag_p99_ms": None,
            "peak_concurrency": None,
            "mean_concurrency": None,
            **load,
        },
        "steady": None,
        "client": {},
        "groups": {},
        "validity": {"valid": not reasons, "reasons": reasons},
    }


def record(index: int, **fields: Any) -> RequestRecord:
    """A request of the measured phase; ids of the tool's own where it has them."""
    fields.setdefault("request_id", f"imported-{index}")
    defaults = {"phase": "measure", "group": "default", "max_tokens": fields.get("output_tokens") or 0}
    made = RequestRecord(index=index, **{**defaults, **fields})
    made.released_ns = made.intended_ns
    return made


def events(stamps: Sequence[int], tokens: int) -> list[Chunk]:
    """Chunks at ``stamps`` that share ``tokens`` as evenly as they can: one each where the numbers agree."""
    if not stamps:
        return []
    extra, source = tokens - len(stamps), "usage"
    each, more = divmod(max(extra, 0), len(stamps))
    counts = [1 + each + (i < more) for i in range(len(stamps))]
    if extra < 0:
        counts = [1] * tokens + [0] * -extra
    return [Chunk(at, "content", n, source, 1) for at, n in zip(stamps, counts, strict=True)]
