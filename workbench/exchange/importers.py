"""Readers of other tools' results. Nothing is invented: what a format lacks stays unknown, and the run
says so."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidInputError
from workbench.exchange.incoming import Incoming, events, record, summary_only
from workbench.exchange.vllm import LATENCIES as VLLM_LATENCIES
from workbench.load import errors
from workbench.manifest import ClockPair

_STATISTICS = {"mean": "mean", "std": "std", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def from_vllm(result: Mapping[str, Any]) -> Incoming:
    """Result of ``vllm bench serve``; with ``--save-detailed`` every request and event, else its summary."""
    chat = "chat" in str(result.get("endpoint_type") or result.get("backend") or "")
    rate = result.get("request_rate")
    limit = result.get("max_concurrency")
    incoming = Incoming(
        tool="vllm",
        model=result.get("model_id"),
        name=result.get("label") or "",
        loop="closed" if limit and rate in (None, "inf") else "hybrid" if limit else "open",
        requested_rate=None if rate in (None, "inf") else float(rate),
        max_concurrency=limit,
        endpoint="chat" if chat else "completions",
        lacks=["cached tokens", "the client's lateness"],
    )
    if result.get("ttfts") and result.get("start_times"):
        _vllm_requests(result, incoming)
        return incoming
    completed, failed = int(result.get("completed") or 0), int(result.get("failed") or 0)
    offered = int(result.get("num_prompts") or completed + failed)
    incoming.lacks.append("single requests (no --save-detailed)")
    incoming.metrics = summary_only(
        duration_s=float(result["duration"]),
        counts={
            "offered": offered,
            "ok": completed,
            "failed": offered - completed,
            "input_tokens": result.get("total_input_tokens"),
            "output_tokens": result.get("total_output_tokens"),
        },
        throughput={
            "output_tok_s": result.get("output_throughput"),
            "input_tok_s": _per_second(result.get("total_input_tokens"), result["duration"]),
            "total_tok_s": result.get("total_token_throughput"),
            "request_s": result.get("request_throughput"),
        },
        latency={
            ours: {
                mine: result[f"{word}_{theirs}_ms"]
                for word, mine in _STATISTICS.items()
                if result.get(f"{word}_{theirs}_ms") is not None
            }
            for theirs, ours in VLLM_LATENCIES.items()
            if result.get(f"mean_{theirs}_ms") is not None
        },
        load={
            "loop": incoming.loop,
            "requested_rate": incoming.requested_rate,
            "peak_concurrency": result.get("max_concurrent_requests"),
        },
        # Releases before the fix wrote the key with a colon at its end.
        goodput_s=result.get("request_goodput", result.get("request_goodput:")),
    )
    return incoming


def _vllm_requests(result: Mapping[str, Any], incoming: Incoming) -> None:
    queued = result.get("queue_times") or [0.0] * len(result["ttfts"])
    scheduled = incoming.requested_rate is not None
    columns = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens", "errors")
    rows = zip(*(result.get(name) or [None] * len(result["ttfts"]) for name in columns), queued, strict=True)
    for index, (start, ttft, itls, latency, inputs, outputs, error, queue) in enumerate(rows):
        sent = round(start * 1e9)
        ok = not error and bool(ttft)
        stamps = [sent + round(ttft * 1e9)] if ok else []
        for gap in itls or () if ok else ():
            stamps.append(stamps[-1] + round(gap * 1e9))
        chunks = events(stamps, outputs or len(stamps))
        carrying = [c for c in chunks if c.n_tokens]
        end = sent + round((latency or 0.0) * 1e9) if latency else (stamps[-1] if stamps else sent)
        incoming.requests.append(
            record(
                index,
                intended_ns=sent - round(queue * 1e9) if scheduled else None,
                sent_ns=sent,
                first_token_ns=carrying[0].recv_ns if carrying else None,
                last_token_ns=carrying[-1].recv_ns if carrying else None,
                close_ns=end,
                prompt_tokens=inputs,
                output_tokens=outputs if ok else None,
                output_tokens_source="usage" if ok else None,
                first_event_tokens=carrying[0].n_tokens if carrying else None,
                status="ok" if ok else "failed",
                error_class=None if ok else errors.HTTP_OTHER,
                error=None if ok else str(error or "no token")[:300],
                chunks=chunks,
            )
        )


def from_guidellm(report: Mapping[str, Any], index: int = 0) -> Incoming:
    """The ``index``-th benchmark of GuideLLM's report. Its requests have first and last token, no events
    between."""
    benchmarks = report["benchmarks"]
    if not isinstance(benchmarks, list) or not 0 <= index < len(benchmarks):
        count = len(benchmarks) if isinstance(benchmarks, list) else 0
        raise InvalidInputError("benchmark", index, f"0 to {count - 1}: the report's benchmarks")
    benchmark = benchmarks[index]
    config = benchmark.get("config") or {}
    backend = config.get("backend") or {}
    strategy = config.get("strategy") or {}
    incoming = Incoming(
        tool="guidellm",
        model=backend.get("model"),
        base_url=backend.get("target"),
        loop="closed" if strategy.get("type_") in ("concurrent", "synchronous") else "open",
        requested_rate=strategy.get("rate") if strategy.get("type_") in ("constant", "poisson") else None,
        lacks=["the times of events between the first token and the last (itl, icl, stall)"],
    )
    incoming.clock = ClockPair(monotonic_ns=0, wall_ns=0)  # its stamps are wall time
    states = {"successful": "ok", "errored": "failed", "incomplete": "cancelled"}
    found = [
        (s, r) for state, s in states.items() for r in (benchmark.get("requests") or {}).get(state) or ()
    ]
    found.sort(key=lambda pair: _timing(pair[1], "request_start") or 0)
    for number, (status, request) in enumerate(found):
        incoming.requests.append(
            record(
                number,
                request_id=str(request.get("request_id") or f"imported-{number}"),
                intended_ns=_timing(request, "targeted_start"),
                sent_ns=_timing(request, "request_start"),
                first_token_ns=_timing(request, "first_token_iteration"),
                last_token_ns=_timing(request, "last_token_iteration"),
                close_ns=_timing(request, "request_end"),
                prompt_tokens=request.get("prompt_tokens"),
                output_tokens=request.get("output_tokens"),
                output_tokens_source="usage",
                first_event_tokens=1,
                status=status,
                error_class={"failed": errors.HTTP_OTHER, "cancelled": errors.CANCELLED}.get(status),
                error=request.get("error"),
            )
        )
    return incoming


def _timing(request: Mapping[str, Any], name: str) -> int | None:
    value = ((request.get("info") or {}).get("timings") or {}).get(name)
    return None if value is None else round(value * 1e9)


def from_aiperf(records: list[Mapping[str, Any]]) -> Incoming:
    """AIPerf's record per request (``profile_export.jsonl``)."""
    incoming = Incoming(tool="aiperf", lacks=["the schedule", "the client's lateness"])
    incoming.clock = ClockPair(monotonic_ns=0, wall_ns=0)
    records = [
        r for r in records if (r.get("metadata") or {}).get("benchmark_phase", "profiling") == "profiling"
    ]
    for number, row in enumerate(records):
        meta, values = row["metadata"], row.get("metrics") or {}

        def value(tag: str, values: Mapping[str, Any] = values) -> Any:
            return (values.get(tag) or {}).get("value")

        failed, cancelled = row.get("error") is not None, bool(meta.get("was_cancelled"))
        status = "failed" if failed else "cancelled" if cancelled else "ok"
        sent, ttft = int(meta["request_start_ns"]), value("time_to_first_token")
        gaps, latency = value("inter_chunk_latency"), value("request_latency")
        tokens = value("output_sequence_length")
        first = None if ttft is None else sent + round(ttft * 1e6)
        stamps = [first] if first is not None and isinstance(gaps, list) else []
        for gap in gaps if stamps else ():
            stamps.append(stamps[-1] + round(gap * 1e6))
        error = row.get("error") or {}
        chunks = events(stamps, int(tokens or len(stamps)))
        incoming.requests.append(
            record(
                number,
                request_id=str(meta.get("x_request_id") or f"imported-{number}"),
                sent_ns=sent,
                headers_ns=meta.get("request_ack_ns"),
                first_token_ns=first,
                last_token_ns=None if latency is None else sent + round(latency * 1e6),
                close_ns=meta.get("request_end_ns"),
                prompt_tokens=value("input_sequence_length"),
                output_tokens=tokens,
                output_tokens_source="tokenizer",
                first_event_tokens=chunks[0].n_tokens if chunks else 1,
                status=status,
                http_status=error.get("code"),
                error_class=None if status == "ok" else error.get("type") or errors.CANCELLED,
                error=error.get("message"),
                chunks=chunks,
            )
        )
    return incoming


def from_csv(text: str) -> Incoming:
    """The CSV of ``runs export --format csv``: times relative to the schedule's origin."""
    incoming = Incoming(tool="csv", lacks=["the times of events between the first token and the last"])
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        sent = _ns(row["sent_ms"])

        def after(name: str, sent: int | None = sent, row: Mapping[str, str] = row) -> int | None:
            shift = _ns(row[name])
            return None if sent is None or shift is None else sent + shift

        incoming.requests.append(
            record(
                number,
                request_id=row["request_id"],
                group=row["group"] or "default",
                intended_ns=_ns(row["intended_ms"]),
                sent_ns=sent,
                first_token_ns=after("ttft_ms"),
                last_token_ns=after("e2el_ms"),
                close_ns=_ns(row["close_ms"]),
                prompt_tokens=_whole(row["prompt_tokens"]),
                cached_tokens=_whole(row["cached_tokens"]),
                output_tokens=_whole(row["output_tokens"]),
                first_event_tokens=_whole(row["first_event_tokens"]),
                status=row["status"],
                http_status=_whole(row["http_status"]),
                error_class=row["error_class"] or None,
                finish_reason=row["finish_reason"] or None,
            )
        )
    incoming.loop = "closed" if all(r.intended_ns is None for r in incoming.requests) else "open"
    return incoming


def _ns(ms: str) -> int | None:
    return round(float(ms) * 1e6) if ms else None


def _whole(text: str) -> int | None:
    return int(text) if text else None


def _per_second(count: float | None, seconds: float) -> float | None:
    return None if count is None or not seconds else count / seconds
