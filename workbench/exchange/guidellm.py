"""GuideLLM's ``benchmarks.json``: one benchmark with distributions and the requests themselves.

Its times are seconds on the wall clock, its ``time_per_output_token_ms`` is latency over *all* output
tokens, and its
``inter_token_latency_ms`` is our ``tpot``.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.exchange.view import RequestView, metrics_of, views, wall_s
from workbench.manifest import tool_version
from workbench.runstore import Run

_PERCENTILES = {
    "p001": 0.1,
    "p01": 1.0,
    "p05": 5.0,
    "p10": 10.0,
    "p25": 25.0,
    "p50": 50.0,
    "p75": 75.0,
    "p90": 90.0,
    "p95": 95.0,
    "p99": 99.0,
    "p999": 99.9,
}


def guidellm_report(run: Run) -> dict[str, Any]:
    """The report of ``run``.

    Raises:
        InvalidInputError: the run has no metrics.
    """
    metrics = metrics_of(run)
    found = views(run)
    states = {"successful": "ok", "errored": "failed", "incomplete": "cancelled"}
    groups = {state: [v for v in found if v.row["status"] == status] for state, status in states.items()}
    made = {state: len(members) for state, members in groups.items()}
    window, load = metrics["window"], run.manifest.load
    benchmark = {
        "type_": "generative_benchmark",
        "config": {
            "id_": run.id,
            "run_id": run.id,
            "run_index": 0,
            "strategy": {"type_": _strategy(metrics["load"]["loop"], load), "rate": load.get("rate")},
            "requests": run.manifest.workload,
            "backend": {"target": run.manifest.target.base_url, "model": run.manifest.target.model},
        },
        "scheduler_metrics": {
            "start_time": wall_s(run, window["start_ns"]),
            "end_time": wall_s(run, window["end_ns"]),
            "measure_start_time": wall_s(run, window["start_ns"]),
            "measure_end_time": wall_s(run, window["end_ns"]),
            "requests_made": {**made, "total": len(found)},
        },
        "metrics": _metrics(groups, metrics),
        "requests": {state: [_request(run, view) for view in members] for state, members in groups.items()},
    }
    return {
        "metadata": {
            "version": 2,
            "generator": f"llm-serving-workbench {tool_version()}",
            "python_version": platform.python_version(),
            "platform": platform.platform(),
        },
        "config": {"command": run.manifest.command},
        "benchmarks": [benchmark],
    }


def _strategy(loop: str, load: dict[str, Any]) -> str:
    if loop == "closed":
        return "concurrent"
    kind = load.get("arrivals")
    return {"burst": "throughput", "constant": "constant", "trace": "replay"}.get(str(kind), "poisson")


def _metrics(groups: dict[str, list[RequestView]], metrics: dict[str, Any]) -> dict[str, Any]:
    ok = groups["successful"]
    rates = metrics["throughput"]
    totals = {state: len(members) for state, members in groups.items()}

    def one(values: Sequence[float | None]) -> dict[str, Any]:
        return {"successful": distribution([v for v in values if v is not None])}

    return {
        "request_totals": {**totals, "total": sum(totals.values())},
        "requests_per_second": {"successful": {"mean": rates["request_s"]}},
        "request_concurrency": {"successful": {"mean": metrics["load"]["mean_concurrency"]}},
        "request_latency": one([_s(view.ms("last_token_ns")) for view in ok]),
        "prompt_token_count": one([view.row["prompt_tokens"] for view in ok]),
        "output_token_count": one([view.row["output_tokens"] for view in ok]),
        "time_to_first_token_ms": one([view.ms("first_token_ns") for view in ok]),
        "time_per_output_token_ms": one([_per_token(view) for view in ok]),
        "inter_token_latency_ms": one([view.tpot_ms for view in ok]),
        "prompt_tokens_per_second": {"successful": {"mean": rates["input_tok_s"]}},
        "output_tokens_per_second": {"successful": {"mean": rates["output_tok_s"]}},
        "tokens_per_second": {"successful": {"mean": rates["total_tok_s"]}},
    }


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Mean, spread and percentiles; every statistic is None without values."""
    names = ("mean", "median", "variance", "std_dev", "min", "max", "total_sum")
    if not values:
        return {**dict.fromkeys(names), "count": 0, "percentiles": dict.fromkeys(_PERCENTILES)}
    array = np.asarray(values, np.float64)
    numbers = (
        array.mean(),
        np.median(array),
        array.var(),
        array.std(),
        array.min(),
        array.max(),
        array.sum(),
    )
    return {
        **{name: float(number) for name, number in zip(names, numbers, strict=True)},
        "count": len(array),
        "percentiles": {name: float(np.percentile(array, q)) for name, q in _PERCENTILES.items()},
    }


def _request(run: Run, view: RequestView) -> dict[str, Any]:
    row = view.row

    def at(stamp: str) -> float | None:
        return wall_s(run, row[stamp])

    return {
        "request_id": row["request_id"],
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "error": row["error"],
        "info": {
            "timings": {
                "targeted_start": at("intended_ns"),
                "request_start": at("sent_ns"),
                "first_token_iteration": at("first_token_ns"),
                "last_token_iteration": at("last_token_ns"),
                "token_iterations": len(view.events),
                "request_end": at("close_ns"),
            }
        },
    }


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _per_token(view: RequestView) -> float | None:
    whole, tokens = view.ms("last_token_ns"), view.row["output_tokens"]
    return whole / tokens if whole is not None and tokens else None
