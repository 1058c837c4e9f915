"""``--save-result``: a JSON with the keys and units of ``vllm bench serve``, converted by meaning, not by
name."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from workbench.atomic import write_json
from workbench.metrics.columns import measured
from workbench.runstore import Run

_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "icl", "e2el": "e2el"}
"""vLLM's name → ours: its ITL is the gap between events, which is our ICL."""
_OURS = ("schema_version", "window", "load", "client", "goodput", "counts", "latency", "groups", "validity")


def vllm_result(run: Run, *, detailed: bool = False) -> dict[str, Any]:
    """The result of ``run``. Aggregates are in ms, arrays in seconds, as there; our own metrics lie under
    ``workbench``.

    Raises:
        InvalidInputError: the run has no metrics.
    """
    metrics = run.metrics()
    if metrics is None:
        raise InvalidInputError("run", run.id, f"a run with metrics (its status is {run.manifest.status})")
    manifest, counts, rates = run.manifest, metrics["counts"], metrics["throughput"]
    load, goodput = manifest.load, metrics.get("goodput")
    chat = load.get("endpoint") == "chat"
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
        "failed": counts["failed"],
        "total_input_tokens": counts["input_tokens"],
        "total_output_tokens": counts["output_tokens"],
        "request_throughput": rates["request_s"],
        "request_goodput": None if goodput is None else goodput["good_s"],
        "output_throughput": rates["output_tok_s"],
        "total_token_throughput": rates["total_tok_s"],
        "max_concurrent_requests": metrics["load"]["peak_concurrency"],
    }
    for theirs, ours in _LATENCIES.items():
        summary = metrics["latency"][ours]
        for statistic, key in (("mean", "mean"), ("p50", "median"), ("std", "std"), ("p99", "p99")):
            result[f"{key}_{theirs}_ms"] = summary[statistic]
    if detailed:
        result |= _arrays(run)
    result["workbench"] = {"run": run.id, **{name: metrics.get(name) for name in _OURS}}
    return result


def save_vllm_result(run: Run, folder: Path, filename: str | None, *, detailed: bool = False) -> Path:
    """Write :func:`vllm_result`; the default name is vLLM's pattern.

    Raises:
        InvalidInputError: the folder can't be written.
    """
    result = vllm_result(run, detailed=detailed)
    concurrency = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    name = (
        filename
        or f"{result['backend']}-{result['request_rate']}qps{concurrency}-{model}-{result['date']}.json"
    )
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
    except OSError as error:
        raise InvalidInputError(
            "result-dir", str(folder), f"a folder that can be written ({error.strerror})"
        ) from None
    return path


def _arrays(run: Run) -> dict[str, Any]:
    """One entry per offered request, failed ones included (0 there, as vLLM writes it), aligned by index."""
    requests, chunks = run.arrow("requests"), run.arrow("chunks")
    if requests is None:
        return {}
    rows = measured(requests).to_pylist()
    gaps: dict[str, list[float]] = {row["request_id"]: [] for row in rows}
    if chunks is not None:
        last: dict[str, int] = {}
        for event in chunks.to_pylist():
            owner, at = event["request_id"], event["recv_ns"]
            if owner in gaps and event["n_tokens"]:
                if owner in last:
                    gaps[owner].append((at - last[owner]) / 1e9)
                last[owner] = at
    return {
        "input_lens": [row["prompt_tokens"] or 0 for row in rows],
        "output_lens": [(row["output_tokens"] or 0) if row["status"] == "ok" else 0 for row in rows],
        "ttfts": [_seconds(row, "first_token_ns") for row in rows],
        "itls": [gaps[row["request_id"]] for row in rows],
        "latencies": [_seconds(row, "last_token_ns") for row in rows],
        "start_times": [(row["sent_ns"] or 0) / 1e9 for row in rows],
        "errors": [row["error"] or "" for row in rows],
    }


def _seconds(row: dict[str, Any], stamp: str) -> float:
    if row["status"] != "ok" or row[stamp] is None:
        return 0.0
    return float((row[stamp] - row["sent_ns"]) / 1e9)
