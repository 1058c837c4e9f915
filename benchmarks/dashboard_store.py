"""A big run and a big store for ``benchmarks.dashboard``: made up, but their tables hang together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from workbench.manifest import ClockPair, Manifest, SweepRef, TableInfo, TargetInfo, machine_info
from workbench.metrics.compute import compute_metrics
from workbench.records import CHUNKS, REQUESTS, TELEMETRY
from workbench.slo import parse_slo

BASE_NS = 5_000_000_000_000
STEP_NS = 10_000_000
_JUDGED = 2_000
"""Requests behind ``metrics.json``: its size does not depend on them, its bootstraps do."""
_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}
STEPS = pa.schema([(name, _TYPES[kind]) for name, kind in STEP_COLUMNS])
EVENTS = pa.schema([(name, _TYPES[kind]) for name, kind in EVENT_COLUMNS])
_CREATED = "2026-11-29T{:02d}:{:02d}:{:02d}.000Z"


def write_big_run(root: Path, run_id: str, requests: int, tokens: int) -> Path:
    """One run of ``requests`` requests with ``tokens`` streamed events each. A step lasts about 10 ms; a
    request waits, computes its prompt in two chunks and decodes to its end in the steps that follow.
    """
    rng = np.random.default_rng(7)
    ids = pa.array([f"req-{i:06d}" for i in range(requests)])
    first_step = (np.arange(requests) * 0.6).astype(np.int64)
    count = int(first_step[-1]) + tokens + 4
    length = rng.normal(STEP_NS, STEP_NS / 12, count).clip(STEP_NS / 2).astype(np.int64)
    length[rng.integers(0, count, count // 500)] *= 6
    end = BASE_NS + np.cumsum(length)
    start = end - length
    wait = rng.exponential(40e6, requests).astype(np.int64)
    sent = start[first_step] - wait - 500_000
    token_step = first_step[:, None] + 1 + np.arange(tokens)[None, :]
    token_ns = end[token_step] + rng.integers(100_000, 900_000, token_step.shape)
    tables = {
        "requests": _requests(ids, sent, token_ns, rng),
        "chunks": _chunks(ids, token_ns),
        "steps": _steps(start, end, first_step, tokens, rng),
        "events": _events(ids, sent, start, end, first_step, tokens),
        "telemetry_cpu": _telemetry(int(end[-1]), rng),
    }
    folder = root / run_id
    folder.mkdir(parents=True)
    slo = "ttft:120 itl:30 e2el:400"
    metrics = compute_metrics(
        tables["requests"].slice(0, _JUDGED), tables["chunks"], start_ns=int(sent[0]), loop="open",
        requested_rate=requests / ((end[-1] - BASE_NS) / 1e9), slo=parse_slo(slo),
    )  # fmt: skip
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    rows = {name: TableInfo(schema_version=1, rows=table.num_rows) for name, table in tables.items()}
    manifest = _manifest(run_id, 0, "big run", machine_info()).model_copy(
        update={
            "tables": rows,
            "slo": slo,
            "clock": [ClockPair(monotonic_ns=BASE_NS, wall_ns=1_790_000_000_000_000_000)],
        }
    )
    _write(folder, manifest, metrics)
    return folder


def write_many_runs(root: Path, metrics: dict[str, Any], count: int) -> None:
    """``count`` runs with manifest and metrics as large as real ones; half of them belong to sweeps."""
    machine = machine_info()
    for i in range(count):
        manifest = _manifest(f"20261129-{i:06d}-abcdef", i, f"run {i}", machine)
        if i % 2:
            place = SweepRef(id=f"sweep-{i // 40}", level=2 ** (i % 8), block=i % 5, position=i % 8)
            manifest = manifest.model_copy(update={"sweep": place})
        folder = root / manifest.id
        folder.mkdir(parents=True)
        _write(folder, manifest, metrics)


def _write(folder: Path, manifest: Manifest, metrics: dict[str, Any]) -> None:
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1))
    (folder / "metrics.json").write_text(json.dumps(metrics))


def _manifest(run_id: str, number: int, name: str, machine: dict[str, Any]) -> Manifest:
    settings = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "block_size": 16, "dtype": "bfloat16"}
    model = {"hidden_size": 576, "intermediate_size": 1536, "num_layers": 30, "num_heads": 9}
    model |= {"num_kv_heads": 3, "head_size": 64, "vocab_size": 49152}
    facts = {"num_kv_blocks": 2912, "kv_cache_bytes": 1_073_479_680, "quantization": "none"}
    echo = {**settings, **facts, "model_config": model, **{f"setting_{i}": i for i in range(30)}}
    return Manifest(
        id=run_id,
        created=_CREATED.format(number // 3600 % 24, number // 60 % 60, number % 60),
        name=name,
        tags=["benchmark", f"tag-{number % 7}"],
        tool_version="0.1.0",
        git={"commit": "0" * 40, "dirty": False},
        command=["workbench", "bench", "--num-prompts", "100000"],
        target=TargetInfo(kind="builtin", model="smollm2-135m", requested=settings, echo=echo),
        workload={"name": "chat-and-documents", "num_requests": 48, "classes": [{"name": "chat"}] * 2},
        machine={**machine, "memory_read_gb_s": 12.0},
        status="complete",
    )


def _requests(ids: pa.Array, sent: Any, token_ns: Any, rng: np.random.Generator) -> pa.Table:
    n, tokens = token_ns.shape
    failed = rng.random(n) < 0.001
    first, last = token_ns[:, 0], token_ns[:, -1]
    columns: dict[str, Any] = {
        "request_id": ids,
        "index": np.arange(n),
        "phase": ["measure"] * n,
        "group": np.where(rng.random(n) < 0.75, "chat", "document"),
        "worker": np.zeros(n, np.int16),
        "intended_ns": sent - 200_000,
        "released_ns": sent - 200_000,
        "sent_ns": sent,
        "headers_ns": sent + 1_000_000,
        "first_token_ns": pa.array(first, mask=failed),
        "last_token_ns": pa.array(last, mask=failed),
        "close_ns": last + 500_000,
        "prompt_tokens": rng.integers(64, 3000, n),
        "cached_tokens": np.zeros(n, np.int64),
        "output_tokens": pa.array(np.full(n, tokens), mask=failed),
        "output_tokens_source": ["token_ids"] * n,
        "first_event_tokens": np.ones(n, np.int64),
        "max_tokens": np.full(n, tokens),
        "status": np.where(failed, "failed", "ok"),
        "http_status": np.where(failed, 500, 200),
        "error_class": pa.array(["http_5xx"] * n, mask=~failed),
        "finish_reason": pa.array(["length"] * n, mask=failed),
        "attempts": np.ones(n, np.int64),
    }
    return _table(columns, REQUESTS)


def _chunks(ids: pa.Array, token_ns: Any) -> pa.Table:
    n, tokens = token_ns.shape
    order = np.argsort(token_ns, axis=None, kind="stable")
    owner = pa.array(np.repeat(np.arange(n), tokens)[order])
    total = n * tokens
    columns = {
        "request_id": ids.take(owner),
        "recv_ns": token_ns.ravel()[order],
        "kind": ["content"] * total,
        "n_tokens": np.ones(total, np.int64),
        "n_tokens_source": ["token_ids"] * total,
    }
    return _table(columns, CHUNKS)


def _steps(start: Any, end: Any, first_step: Any, tokens: int, rng: np.random.Generator) -> pa.Table:
    count = len(start)
    begun = np.bincount(first_step, minlength=count)[:count]
    prefilling = begun + np.concatenate([[0], begun[:-1]])
    decoding = np.cumsum(begun) - np.concatenate([np.zeros(tokens + 1), np.cumsum(begun)[: -tokens - 1]])
    decoding = (decoding - prefilling).clip(0).astype(np.int64)
    took = end - start
    marks = {name: start + (took * at).astype(np.int64) for name, at in _PHASES.items()}
    used = (decoding * 40 + prefilling * 60).clip(0, 2912)
    columns = {
        "step_id": np.arange(count),
        "t_start": start,
        **marks,
        "t_end": end,
        "num_prefill_reqs": prefilling,
        "num_decode_reqs": decoding,
        "prefill_tokens": prefilling * 512,
        "decode_tokens": decoding,
        "prefill_sum_sk": prefilling * 800,
        "prefill_sum_sq2": prefilling * 512**2,
        "prefill_sum_sqsk": prefilling * 512 * 800,
        "decode_sum_sk": decoding * rng.integers(300, 900, count),
        "num_running": decoding + prefilling,
        "num_waiting": rng.integers(0, 6, count),
        "admission_stop": np.where(rng.random(count) < 0.3, "token_budget", "queue_empty"),
        "kv_used": used,
        "kv_free": (2912 - used) // 2,
        "kv_cached": 2912 - used - (2912 - used) // 2,
        "kv_evicted": np.zeros(count, np.int64),
        "prefix_query_tokens": prefilling * 512,
        "prefix_hit_tokens": np.zeros(count, np.int64),
        "num_preempted": np.zeros(count, np.int64),
        "preempted_tokens": np.zeros(count, np.int64),
    }
    return _table(columns, STEPS)


_PHASES = {"t_schedule": 0.02, "t_prepare": 0.05, "t_forward": 0.93, "t_sample": 0.97}


def _events(ids: pa.Array, sent: Any, start: Any, end: Any, first: Any, tokens: int) -> pa.Table:
    n = len(first)
    last = first + tokens
    kinds: list[tuple[str, Any, Any, int | None, Any]] = [
        ("queued", sent + 400_000, None, 1024, sent + 300_000),
        ("scheduled", start[first] + 100_000, first, 512, np.zeros(n, np.int64)),
        ("scheduled", start[first + 1] + 100_000, first + 1, 512, np.full(n, 512)),
        ("first_token", end[first + 1], first + 1, 1, None),
        ("finished", end[last], last, tokens, None),
    ]
    parts = []
    for kind, t_ns, step, count, value in kinds:
        columns = {
            "t_ns": t_ns,
            "request_id": ids,
            "core_id": pa.compute.binary_join_element_wise(ids, "0", "-"),
            "kind": [kind] * n,
            "step_id": step if step is not None else pa.nulls(n),
            "tokens": np.full(n, count),
            "value": value if value is not None else pa.nulls(n),
            "detail": ["length"] * n if kind == "finished" else pa.nulls(n),
        }
        parts.append(_table(columns, EVENTS))
    return pa.concat_tables(parts).sort_by("t_ns")


def _telemetry(end_ns: int, rng: np.random.Generator) -> pa.Table:
    times = np.arange(BASE_NS, end_ns, 250_000_000)
    parts = []
    for name, unit, middle in (("cpu_percent", "%", 150.0), ("rss_bytes", "bytes", 9e8)):
        columns = {
            "t_ns": times,
            "name": [name] * len(times),
            "value": middle * rng.uniform(0.9, 1.1, len(times)),
            "unit": [unit] * len(times),
            "source": ["psutil"] * len(times),
            "status": ["ok"] * len(times),
        }
        parts.append(_table(columns, TELEMETRY))
    return pa.concat_tables(parts)


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns that are left out are null."""
    n = len(next(iter(columns.values())))
    return pa.table({f.name: _column(columns.get(f.name), f.type, n) for f in schema}, schema=schema)


def _column(values: Any, kind: pa.DataType, n: int) -> pa.Array:
    if values is None:
        return pa.nulls(n, kind)
    found = values if isinstance(values, pa.Array) else pa.array(values)
    return found.cast(kind)


def read_metrics(folder: Path) -> dict[str, Any]:
    """``metrics.json`` of a run that was written here."""
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_bytes())
    return found
