"""AIPerf's artefacts: ``profile_export.jsonl`` (a record per request) and ``profile_export_aiperf.json``.

Its ``inter_token_latency`` is our ``tpot``; the gaps are its ``inter_chunk_latency``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.exchange.view import RequestView, metrics_of, views, wall_s
from workbench.runstore import Run

RECORDS = "profile_export.jsonl"
SUMMARY = "profile_export_aiperf.json"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf_records(run: Run) -> list[dict[str, Any]]:
    """One record per offered request."""
    return [_record(run, view, number) for number, view in enumerate(views(run))]


def aiperf_summary(run: Run) -> dict[str, Any]:
    """Tag → statistics, as its JSON export.

    Raises:
        InvalidInputError: the run has no metrics.
    """
    metrics, found = metrics_of(run), views(run)
    ok = [view for view in found if view.ok]
    counts, rates, window, goodput = (metrics[name] for name in ("counts", "throughput", "window", "goodput"))
    errors = Counter(view.row["error_class"] for view in found if view.row["status"] == "failed")
    scalars = {
        "request_throughput": ("requests/sec", rates["request_s"]),
        "output_token_throughput": ("tokens/sec", rates["output_tok_s"]),
        "request_count": ("requests", counts["ok"]),
        "error_request_count": ("requests", counts["failed"]),
        "benchmark_duration": ("sec", window["duration_s"]),
    }
    if goodput is not None:
        scalars["goodput"] = ("requests/sec", goodput["good_s"])
        scalars["good_request_count"] = ("requests", goodput["good"])
    return {
        **{tag: _statistics(unit, values) for tag, (unit, values) in _distributions(ok).items()},
        **{tag: {"unit": unit, "avg": value} for tag, (unit, value) in scalars.items()},
        "input_config": {"workload": run.manifest.workload, "load": run.manifest.load},
        "was_cancelled": run.manifest.status == "interrupted",
        "error_summary": [
            {"error_details": {"type": name}, "count": count} for name, count in sorted(errors.items())
        ],
        "start_time": wall_s(run, window["start_ns"]),
        "end_time": wall_s(run, window["end_ns"]),
    }


def _distributions(ok: Sequence[RequestView]) -> dict[str, tuple[str, list[float]]]:
    def known(values: Sequence[float | None]) -> list[float]:
        return [v for v in values if v is not None]

    return {
        "request_latency": ("ms", known([v.ms("last_token_ns") for v in ok])),
        "time_to_first_token": ("ms", known([v.ms("first_token_ns") for v in ok])),
        "inter_token_latency": ("ms", known([v.tpot_ms for v in ok])),
        "inter_chunk_latency": ("ms", [gap for v in ok for gap in v.gaps_ms]),
        "output_sequence_length": ("tokens", known([v.row["output_tokens"] for v in ok])),
        "input_sequence_length": ("tokens", known([v.row["prompt_tokens"] for v in ok])),
    }


def _statistics(unit: str, values: Sequence[float]) -> dict[str, Any]:
    names = ("avg", "min", "max", "std", *(f"p{p}" for p in _PERCENTILES))
    if not values:
        return {"unit": unit, **dict.fromkeys(names)}
    array = np.asarray(values, np.float64)
    numbers = (array.mean(), array.min(), array.max(), array.std(), *np.percentile(array, _PERCENTILES))
    return {"unit": unit, **{name: float(number) for name, number in zip(names, numbers, strict=True)}}


def _record(run: Run, view: RequestView, number: int) -> dict[str, Any]:
    row = view.row

    def at(stamp: str) -> int | None:
        seconds = wall_s(run, row[stamp])
        return None if seconds is None else round(seconds * 1e9)

    values = {
        "time_to_first_token": (view.ms("first_token_ns"), "ms"),
        "request_latency": (view.ms("last_token_ns"), "ms"),
        "inter_token_latency": (view.tpot_ms, "ms"),
        "inter_chunk_latency": (view.gaps_ms or None, "ms"),
        "output_sequence_length": (row["output_tokens"], "tokens"),
        "input_sequence_length": (row["prompt_tokens"], "tokens"),
    }
    failed = row["status"] == "failed"
    return {
        "metadata": {
            "session_num": number if row.get("session") is None else row["session"],
            "x_request_id": row["request_id"],
            "turn_index": row.get("turn") or 0,
            "request_start_ns": at("sent_ns"),
            "request_ack_ns": at("headers_ns"),
            "request_end_ns": at("close_ns"),
            "worker_id": f"worker_{row['worker']}",
            "benchmark_phase": "profiling",
            "was_cancelled": row["status"] == "cancelled",
        },
        "metrics": {
            tag: {"value": value, "unit": unit} for tag, (value, unit) in values.items() if value is not None
        },
        "error": {"code": row["http_status"], "type": row["error_class"], "message": row["error"]}
        if failed
        else None,
    }
