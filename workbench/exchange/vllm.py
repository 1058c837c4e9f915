"""The result JSON of ``vllm bench serve``: every key of it, in its units, and our own metrics beside them.

Aggregates are in ms, arrays in seconds. Arrays hold one entry per offered request, failed ones included,
aligned by
index, as there.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import InvalidInputError
from workbench.atomic import write_json
from workbench.exchange.view import RequestView, metrics_of, views
from workbench.runstore import Run

LATENCIES = {
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "icl",
    "e2el": "e2el",
    "e2el_including_client_queue": "e2el_sched",
}
"""vLLM's name → ours: its ITL is the gap between events, which is our ICL."""
_OURS = (
    "schema_version",
    "window",
    "load",
    "client",
    "goodput",
    "counts",
    "latency",
    "steady",
    "groups",
    "validity",
)
DEFAULT_PERCENTILES = (99.0,)


def vllm_result(
    run: Run, *, detailed: bool = False, percentiles: Sequence[float] = DEFAULT_PERCENTILES
) -> dict[str, Any]:
    """The result of ``run``; our own metrics lie under ``workbench``.

    Args:
        detailed: with the arrays, as ``--save-detailed`` gives them.
        percentiles: as ``--metric-percentiles``.

    Raises:
        InvalidInputError: the run has no metrics.
    """
    metrics = metrics_of(run)
    manifest, counts, rates = run.manifest, metrics["counts"], metrics["throughput"]
    load, goodput = manifest.load, metrics.get("goodput")
    chat = load.get("endpoint") == "chat"
    requests = views(run)
    result: dict[str, Any] = {
        "date": datetime.fromisoformat(manifest.created).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if chat else "openai",
        "backend": "openai-chat" if chat else "openai",
        "label": manifest.name or None,
        "model_id": manifest.target.model,
        "tokenizer_id": manifest.target.model,
        "num_prompts": counts["offered"],
        "request_rate": load.get("rate") if load.get("rate") is not None else "inf",
        "burstiness": load.get("burstiness"),
        "max_concurrency": load.get("max_concurrency"),
        "duration": metrics["window"]["duration_s"],
        "completed": counts["ok"],
        "failed": counts["failed"] + counts["cancelled"],
        "total_input_tokens": counts["input_tokens"],
        "total_output_tokens": counts["output_tokens"],
        "request_throughput": rates["request_s"],
        "request_goodput": None if goodput is None else goodput["good_s"],
        "output_throughput": rates["output_tok_s"],
        "total_token_throughput": rates["total_tok_s"],
        "max_output_tokens_per_s": _busiest_second(requests),
        "max_concurrent_requests": metrics["load"]["peak_concurrency"],
        "rtfx": 0.0,  # of audio; vLLM writes 0 for text
    }
    for theirs, ours in LATENCIES.items():
        summary = metrics["latency"][ours]
        for statistic, key in (("mean", "mean"), ("p50", "median"), ("std", "std")):
            result[f"{key}_{theirs}_ms"] = summary[statistic]
        for percentile in percentiles:
            result[f"p{percentile:g}_{theirs}_ms"] = _percentile(summary, ours, percentile, requests)
    if detailed:
        result |= _arrays(requests)
    result["workbench"] = {"run": run.id, **{name: metrics.get(name) for name in _OURS}}
    return result


def save_vllm_result(
    run: Run,
    folder: Path,
    filename: str | None,
    *,
    detailed: bool = False,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> Path:
    """Write :func:`vllm_result`; the default name is vLLM's pattern.

    Raises:
        InvalidInputError: the folder can't be written.
    """
    result = vllm_result(run, detailed=detailed, percentiles=percentiles)
    concurrency = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    name = (
        filename
        or f"{result['backend']}-{result['request_rate']}qps{concurrency}-{model}-{result['date']}.json"
    )
    path = folder / name
    check_folder(path.parent)
    write_json(path, result)
    return path


def check_folder(folder: Path) -> None:
    """That a result can be written to ``folder``: known before the run, not after it.

    Raises:
        InvalidInputError: it can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InvalidInputError(
            "result-dir", str(folder), f"a folder that can be written ({error.strerror})"
        ) from None


def parse_percentiles(text: str) -> tuple[float, ...]:
    """``"50,99.9"`` of ``--metric-percentiles``.

    Raises:
        InvalidInputError: not numbers from 0 to 100.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= p <= 100 for p in found):
        raise InvalidInputError("metric-percentiles", text, "numbers from 0 to 100, e.g. '50,95,99.9'")
    return found


def _percentile(
    summary: dict[str, Any], latency: str, percentile: float, requests: Sequence[RequestView]
) -> float | None:
    name = f"p{percentile:g}"
    if name in summary:
        value: float | None = summary[name]
        return value
    values = [v for view in requests if view.ok for v in _values(view, latency)]
    return float(np.percentile(values, percentile)) if values else None


def _values(view: RequestView, latency: str) -> list[float]:
    if latency == "icl":
        return view.gaps_ms
    value = {
        "ttft": view.ms("first_token_ns"),
        "tpot": view.tpot_ms,
        "e2el": view.ms("last_token_ns"),
        "e2el_sched": view.ms("last_token_ns", "intended_ns"),
    }[latency]
    return [] if value is None else [value]


def _busiest_second(requests: Sequence[RequestView]) -> float:
    """Most output tokens in one whole second after the first sending. vLLM counts events here, we count
    tokens."""
    sent = [view.row["sent_ns"] for view in requests if view.row["sent_ns"] is not None]
    if not sent:
        return 0.0
    origin = min(sent)
    seconds: Counter[int] = Counter()
    for view in requests:
        for at, tokens in view.events if view.ok else ():
            seconds[(at - origin) // 1_000_000_000] += tokens
    return float(max(seconds.values(), default=0))


def _arrays(requests: Sequence[RequestView]) -> dict[str, Any]:
    rows = [view.row for view in requests]
    return {
        "input_lens": [row["prompt_tokens"] or 0 for row in rows],
        "output_lens": [(v.row["output_tokens"] or 0) if v.ok else 0 for v in requests],
        "ttfts": [_seconds(v, "first_token_ns") for v in requests],
        "itls": [[gap / 1e3 for gap in v.gaps_ms] if v.ok else [] for v in requests],
        "latencies": [_seconds(v, "last_token_ns") for v in requests],
        "start_times": [(row["sent_ns"] or 0) / 1e9 for row in rows],
        "queue_times": [(v.ms("sent_ns", "intended_ns") or 0.0) / 1e3 for v in requests],
        "generated_texts": [""] * len(rows),  # texts are not stored, only their digest
        "errors": ["" if v.ok else v.row["error"] or v.row["status"] for v in requests],
    }


def _seconds(view: RequestView, stamp: str) -> float:
    return (view.ms(stamp) or 0.0) / 1e3 if view.ok else 0.0
