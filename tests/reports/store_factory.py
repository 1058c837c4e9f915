"""Writes a run store as the workbench would: good runs, a sweep, and every kind of broken folder a reader
must survive.
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from tests.reports.mini_engine import BASE_NS, MS, Traffic, play, traffic
from tests.reports.sweep_factory import sweep_result
from workbench.records import CHUNKS, REQUESTS, TELEMETRY

_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}
STEPS = pa.schema([(name, _TYPES[kind]) for name, kind in STEP_COLUMNS])
EVENTS = pa.schema([(name, _TYPES[kind]) for name, kind in EVENT_COLUMNS])
HOSTILE = "</script><img src=x onerror=alert(1)>"


def _quantile(values: list[float], q: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


def _summary(values: list[float]) -> dict[str, Any]:
    low, high = _quantile(values, 0.42), _quantile(values, 0.58)
    return {
        "unit": "ms",
        "n": len(values),
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.pstdev(values) if values else None,
        **{f"p{p}": _quantile(values, p / 100) for p in (50, 90, 95, 99)},
        "max": max(values, default=None),
        "p99_flagged": len(values) < 1000,
        "ci": {"p50": [low, high], "mean": [low, high]},
    }


def _tables(requests: list[Traffic], failed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows, chunks = [], []
    for i, r in enumerate(requests):
        bad = i < failed
        stamps = [t + MS // 2 for t in r.token_ns]
        rows.append(
            {
                "request_id": r.request_id,
                "index": i,
                "phase": "measure",
                "group": r.group,
                "worker": i % 2,
                "intended_ns": r.arrival_ns - MS,
                "sent_ns": r.arrival_ns - MS // 2,
                "headers_ns": r.arrival_ns + MS,
                "first_token_ns": None if bad else stamps[0],
                "last_token_ns": None if bad else stamps[-1],
                "close_ns": stamps[-1] + MS,
                "prompt_tokens": r.prompt,
                "cached_tokens": 0,
                "output_tokens": None if bad else len(stamps),
                "output_tokens_source": None if bad else "token_ids",
                "first_event_tokens": None if bad else 1,
                "max_tokens": r.output,
                "status": "failed" if bad else "ok",
                "http_status": 500 if bad else 200,
                "error_class": "http_5xx" if bad else None,
                "error": "engine dead <b>bold?</b>" if bad else None,
                "finish_reason": None if bad else "length",
                "output_sha256": None if bad else hashlib.sha256(r.request_id.encode()).hexdigest(),
            }
        )
        if not bad:
            chunks += [
                {
                    "request_id": r.request_id,
                    "recv_ns": t,
                    "kind": "content",
                    "n_tokens": 1,
                    "n_tokens_source": "token_ids",
                }
                for t in stamps
            ]
    return rows, chunks


def _telemetry(start: int, end: int, seed: int) -> list[dict[str, Any]]:
    rng, rows = random.Random(seed), []
    for t in range(start, end, 250 * MS):
        for name, unit, value in (
            ("cpu_percent", "%", 150 + rng.uniform(-30, 40)),
            ("rss_bytes", "bytes", 9.2e8 + (t - start) / 40 + rng.uniform(0, 2e7)),
            ("cpu_frequency", "MHz", 2900 + rng.uniform(-50, 50)),
        ):
            rows.append(
                {"t_ns": t, "name": name, "value": value, "unit": unit, "source": "psutil", "status": "ok"}
            )
        rows.append(
            {
                "t_ns": t,
                "name": "package_watts",
                "value": None,
                "unit": "W",
                "source": "rapl",
                "status": "no_permission",
            }
        )
    return rows


def _metrics(rows: list[dict[str, Any]], chunks: list[dict[str, Any]], reasons: list[str]) -> dict[str, Any]:
    ok = [r for r in rows if r["status"] == "ok"]
    ttft = [(r["first_token_ns"] - r["sent_ns"]) / MS for r in ok]
    e2el = [(r["last_token_ns"] - r["sent_ns"]) / MS for r in ok]
    itl, last = [], {}
    for c in chunks:
        if c["request_id"] in last:
            itl.append((c["recv_ns"] - last[c["request_id"]]) / MS)
        last[c["request_id"]] = c["recv_ns"]
    start, end = min(r["sent_ns"] for r in rows), max(r["close_ns"] for r in rows)
    seconds = (end - start) / 1e9
    out_tokens = sum(r["output_tokens"] for r in ok)
    good = sum(t <= 600 for t in ttft)
    latency = {
        "ttft": ttft,
        "ttft_sched": [t + 0.5 for t in ttft],
        "itl": itl,
        "icl": itl,
        "stall": itl,
        "e2el": e2el,
    }
    latency |= {"tpot": [e / r["output_tokens"] for e, r in zip(e2el, ok, strict=True)]}
    groups = {}
    for g in ("chat", "document"):
        part = [t for t, r in zip(ttft, ok, strict=True) if r["group"] == g]
        groups[g] = {"latency": {"ttft": _summary(part)}, "counts": {"ok": len(part)}}
    in_tokens = sum(r["prompt_tokens"] for r in ok)
    return {
        "schema_version": 1,
        "window": {"start_ns": start, "end_ns": end, "duration_s": seconds},
        "latency": {name: _summary(values) for name, values in latency.items()},
        "throughput": {
            "output_tok_s": out_tokens / seconds,
            "input_tok_s": in_tokens / seconds,
            "total_tok_s": (out_tokens + in_tokens) / seconds,
            "request_s": len(ok) / seconds,
        },
        "goodput": {
            "slo": "ttft:600 itl:100",
            "offered": len(rows),
            "good": good,
            "good_s": good / seconds,
            "ratio": good / len(rows),
            "missed_by": {"ttft": len(ok) - good},
            "vacuous": False,
        },
        "counts": {
            "offered": len(rows),
            "ok": len(ok),
            "failed": len(rows) - len(ok),
            "cancelled": 0,
            "errors": {"http_5xx": len(rows) - len(ok)} if len(ok) < len(rows) else {},
            "input_tokens": in_tokens,
            "cached_tokens": 0,
            "output_tokens": out_tokens,
        },
        "load": {
            "loop": "open",
            "requested_rate": 5.5,
            "achieved_rate": len(rows) / seconds,
            "lag_p50_ms": 0.4,
            "lag_p99_ms": 2.1,
            "peak_concurrency": 8,
            "mean_concurrency": 3.4,
        },
        "groups": groups,
        "validity": {"valid": not reasons, "reasons": reasons},
    }


def _write(folder: Path, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> dict[str, int]:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")
    return {"schema_version": 1, "rows": len(rows)}


def write_run(
    root: Path,
    run_id: str,
    chunk: int = 256,
    seed: int = 1,
    count: int = 24,
    *,
    traces: bool = True,
    reasons: list[str] | None = None,
    failed: int = 0,
    hostile: bool = False,
    speed: float = 1.0,
    sweep: dict[str, Any] | None = None,
    status: str = "complete",
) -> dict[str, Any]:
    """One run folder; returns its metrics."""
    folder = root / run_id
    folder.mkdir(parents=True)
    requests = traffic(count, seed, hostile)
    steps, events = play(requests, chunk, seed, speed=speed)
    rows, chunks = _tables(requests, failed)
    metrics = _metrics(rows, chunks, reasons or [])
    tables = {
        "requests": _write(folder, "requests", rows, REQUESTS),
        "chunks": _write(folder, "chunks", chunks, CHUNKS),
        "telemetry_cpu": _write(
            folder, "telemetry_cpu", _telemetry(BASE_NS, rows[-1]["close_ns"], seed), TELEMETRY
        ),
    }
    if traces:
        tables |= {
            "steps": _write(folder, "steps", steps, STEPS),
            "events": _write(folder, "events", events, EVENTS),
        }
    echo = {
        "model": "smollm2-135m",
        "max_num_batched_tokens": chunk,
        "max_num_seqs": 8,
        "block_size": 16,
        "port": 9000 + seed,
    }
    manifest = {
        "schema_version": 1,
        "kind": "run",
        "id": run_id,
        "created": f"2026-11-2{seed % 9}T10:{count % 60:02d}:00+00:00",
        "name": HOSTILE if hostile else f"chunk {chunk}",
        "tags": ["demo"],
        "tool_version": "0.1.0",
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "command": ["workbench", "bench", "--model", HOSTILE if hostile else "smollm2-135m"],
        "target": {
            "kind": "builtin",
            "base_url": "http://127.0.0.1:9000",
            "model": HOSTILE if hostile else "smollm2-135m",
            "requested": {"max_num_batched_tokens": chunk},
            "echo": echo,
        },
        "workload": {"name": "chat-and-documents", "rate": 5.5, "num_requests": count},
        "workload_sha256": "ab" * 32,
        "seed": seed,
        "nonce": "n0",
        "machine": {
            "cpu": "Example CPU @ 2.9 GHz",
            "cores": 2,
            "memory_bytes": 8 * 2**30,
            "gpus": [],
            "kernel": "6.1.0",
            "python": "3.11.7",
            "torch": "2.15.0",
        },
        "clock": [
            {"monotonic_ns": BASE_NS, "wall_ns": 1_790_000_000_000_000_000},
            {
                "monotonic_ns": rows[-1]["close_ns"],
                "wall_ns": 1_790_000_000_000_000_000 + rows[-1]["close_ns"] - BASE_NS,
            },
        ],
        "status": status,
        "error": None,
        "drops": {},
        "tables": tables,
        "sweep": sweep,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return metrics


def write_broken(root: Path) -> None:
    """Folders that are no run: unreadable manifest, foreign content, a Parquet file that is none, an empty
    folder.
    """
    corrupt = root / "corrupt-run"
    corrupt.mkdir(parents=True)
    (corrupt / "manifest.json").write_text('{"schema_version": 1, "kind": "run", "id": "corr')
    foreign = root / "holiday-photos"
    foreign.mkdir()
    (foreign / "readme.txt").write_text("not ours")
    write_run(root, "torn-tables", seed=5, count=6)
    (root / "torn-tables" / "steps.parquet").write_bytes(b"PAR1 cut short")
    (root / "torn-tables" / "requests.parquet").write_bytes(b"")
    broken = root / "sweep-broken"
    broken.mkdir()
    (broken / "sweep.json").write_text('{"id": "sweep-broken"}')
    (root / "empty").mkdir()


def write_sweep(
    root: Path, sweep_id: str = "sweep-chunk", blocks: int = 4, count: int = 14, **kind: Any
) -> Path:
    """A sweep over ``chunk_size`` with its run folders; returns the sweep's folder."""

    def run(cell: Any) -> dict[str, Any]:
        noise = random.Random(f"{cell.block}/{cell.position}").uniform(0.97, 1.03) * (1 + 0.01 * cell.block)
        chunk = int(cell.level)
        place = {"id": sweep_id, "level": cell.level, "block": cell.block, "position": cell.position}
        return write_run(root, cell.run, chunk, 11 + cell.block, count, speed=noise, sweep=place)

    folder = root / sweep_id
    folder.mkdir(parents=True)
    result = sweep_result(sweep_id, run, blocks=blocks, **kind)
    (folder / "sweep.json").write_text(result.model_dump_json())
    return folder


def write_store(root: Path) -> Path:
    """The whole store: several good runs, an invalid one, one without traces, hostile text, a sweep, broken
    folders.
    """
    write_run(root, "run-a", 256, 1, 40)
    write_run(root, "run-b", 64, 1, 40)
    write_run(root, "run-invalid", 512, 2, 20, reasons=["3 of 20 requests failed (http_5xx)"], failed=3)
    write_run(root, "run-no-traces", 256, 3, 16, traces=False)
    write_run(root, "run-hostile", 128, 4, 12, hostile=True)
    write_broken(root)
    write_sweep(root)
    return root
