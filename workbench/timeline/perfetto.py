"""One timeline of a run: client requests, their phases in the engine, steps, counters, hardware, kernels.

``export(run, out)`` writes Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.errors import InvalidInputError
from workbench.atomic import beside
from workbench.errors import RunCorruptError
from workbench.timeline.chrome_trace import ChromeTraceWriter, Lanes
from workbench.timeline.segments import EngineLife
from workbench.timeline.split import engine_lives, split_requests, step_times
from workbench.timeline.tables import SCHEMAS, check_columns, read_checked

if TYPE_CHECKING:
    from workbench.runstore import Run
    from workbench.timeline.split import RequestSplit

CLIENT, ENGINE, STEPS, HARDWARE, KERNELS = 1, 2, 3, 4, 5
_PHASES = ("schedule", "prepare", "forward", "sample", "output")
_STAMPS = ("t_start", "t_schedule", "t_prepare", "t_forward", "t_sample", "t_end")
_BATCH = 65_536
_KERNEL_COLUMNS = ["name", "track", "ts_ns", "dur_ns", "cls", "correlation", "step_id"]


def export(run: Run, out: Path) -> int:
    """Write ``run`` to ``out`` (``.json``, or ``.json.gz``), atomically. Memory is bounded by the requests
    and steps; chunks and telemetry pass through in batches.

    Returns:
        Number of events.

    Raises:
        InvalidInputError: ``out`` can't be written.
        RunCorruptError: a table can't be read.
    """
    metadata = {"traceName": out.name, "run": run.id, "schemaVersion": 1, "clockDomain": "CLOCK_MONOTONIC"}
    try:
        with beside(out) as place:
            with ChromeTraceWriter(place, _base_ns(run), metadata, compress=out.suffix == ".gz") as writer:
                _Export(run, writer).write()
            return writer.num_events
    except pa.ArrowException as error:
        raise RunCorruptError(f"{run.path}: {error}") from None
    except OSError as error:
        raise InvalidInputError(
            "output", str(out), f"a file that can be written ({error.strerror})"
        ) from None


def _base_ns(run: Run) -> int:
    """Earliest stamp that any lane can have."""
    found = [pair.monotonic_ns for pair in run.manifest.clock[:1]]
    for name, column in (("requests", "sent_ns"), ("requests", "intended_ns"), ("steps", "t_start"),
                         ("events", "t_ns"), ("chunks", "recv_ns"), ("kernels", "ts_ns")):  # fmt: skip
        for batch in _batches(run, name, [column]):
            least = pc.min(batch[column]).as_py()
            found += [] if least is None else [least]
    return min(found, default=0)


class _Export:
    def __init__(self, run: Run, writer: ChromeTraceWriter) -> None:
        self._run = run
        self._out = writer

    def write(self) -> None:
        run = self._run
        requests, steps = read_checked(run, "requests"), read_checked(run, "steps")
        lives = engine_lives(read_checked(run, "events"), step_times(steps))
        splits = split_requests(requests.to_pylist(), lives) if requests is not None else []
        lanes = self._client(splits)
        self._chunks(lanes)
        self._engine([(owner, life) for owner, many in lives.items() for life in many], lanes)
        if steps is not None:
            self._steps(steps)
        self._hardware()
        self._kernels()

    def _client(self, splits: Sequence[RequestSplit]) -> dict[str, int]:
        """One slice per request from due to last token; overlapping ones on lanes of their own."""
        out, lanes, place = self._out, Lanes(), {}
        out.process(CLIENT, "client requests")
        for one in sorted(splits, key=lambda s: s.sent_ns - s.client_lag_ns):
            due = one.sent_ns - one.client_lag_ns
            tid = lanes.place(due, one.end_ns) + 1
            place[one.request_id] = tid
            args = {"request_id": one.request_id, "phase": one.phase, "status": one.status,
                    "prompt_tokens": one.prompt_tokens, "output_tokens": one.output_tokens}  # fmt: skip
            out.slice(CLIENT, tid, one.request_id, due, one.end_ns - due, args)
            if one.client_lag_ns:
                out.slice(CLIENT, tid, "client lag", due, one.client_lag_ns)
            first = one.first_ns if one.first_ns is not None else one.end_ns
            out.slice(CLIENT, tid, "to first token", one.sent_ns, max(0, first - one.sent_ns))
            if one.first_ns is not None and one.end_ns > first:
                out.slice(CLIENT, tid, "streaming", first, one.end_ns - first)
            if one.life is not None:
                out.flow(CLIENT, tid, "request", _flow_id(one.life.core_id), one.sent_ns, end=False)
        for tid in range(1, lanes.count + 1):
            out.thread(CLIENT, tid, f"slot {tid}")
        return place

    def _chunks(self, lanes: Mapping[str, int]) -> None:
        out = self._out
        for batch in _batches(self._run, "chunks", ["request_id", "recv_ns", "kind", "n_tokens"]):
            columns = (batch[name].to_pylist() for name in ("request_id", "recv_ns", "kind", "n_tokens"))
            for owner, at, kind, tokens in zip(*columns, strict=True):
                tid = lanes.get(owner)
                if tid is not None and at is not None:
                    out.instant(CLIENT, tid, kind or "event", at, {"tokens": tokens})

    def _engine(self, lives: list[tuple[str, EngineLife]], client: Mapping[str, int]) -> None:
        """Each sequence's life, state by state."""
        out, lanes = self._out, Lanes()
        out.process(ENGINE, "engine requests")
        for owner, life in sorted(lives, key=lambda pair: pair[1].submitted_ns):
            tid = lanes.place(life.submitted_ns, life.end_ns) + 1
            args = {"request_id": owner, "core_id": life.core_id, "finish_reason": life.finish_reason,
                    "preemptions": life.num_preemptions, "prefix_hit_tokens": life.hit_tokens,
                    "lost_tokens": life.lost_tokens}  # fmt: skip
            out.slice(ENGINE, tid, life.core_id, life.submitted_ns, life.end_ns - life.submitted_ns, args)
            if owner in client:
                out.flow(ENGINE, tid, "request", _flow_id(life.core_id), life.submitted_ns, end=True)
            for state, start, end, step_id, tokens in life.segments:
                detail = {"step": step_id, "tokens": tokens} if step_id is not None else None
                out.slice(ENGINE, tid, state, start, end - start, detail)
            if life.first_token_ns is not None:
                out.instant(ENGINE, tid, "first token", life.first_token_ns)
        for tid in range(1, lanes.count + 1):
            out.thread(ENGINE, tid, f"sequence lane {tid}")

    def _steps(self, table: pa.Table) -> None:
        """Steps with their phases, then what the batch, the queue and the KV pool held."""
        out, lanes = self._out, Lanes()
        out.process(STEPS, "scheduler steps")
        order = table.sort_by("t_start")
        for batch in order.to_batches(max_chunksize=_BATCH):
            for row in batch.to_pylist():
                start, end = row["t_start"], row["t_end"]
                tid = lanes.place(start, end) + 1
                args = {k: v for k, v in row.items() if k not in _STAMPS}
                out.slice(STEPS, tid, f"step {row['step_id']}", start, end - start, args)
                at = start
                for phase, stamp in zip(_PHASES, _STAMPS[1:], strict=True):
                    until = row[stamp]
                    if until is None:
                        continue
                    until = min(max(until, at), end)
                    out.slice(STEPS, tid, phase, at, until - at)
                    at = until
                self._counters(row)
        for tid in range(1, lanes.count + 1):
            out.thread(STEPS, tid, "steps" if tid == 1 else f"steps in flight {tid}")

    def _counters(self, row: Mapping[str, Any]) -> None:
        out, at = self._out, row["t_start"]
        out.counter(
            STEPS, "batch tokens", at, {"prefill": row["prefill_tokens"], "decode": row["decode_tokens"]}
        )
        out.counter(STEPS, "requests", at, {"running": row["num_running"], "waiting": row["num_waiting"]})
        out.counter(STEPS, "KV blocks", at, {"used": row["kv_used"], "cached": row["kv_cached"]})
        if row["num_preempted"]:
            out.instant(STEPS, 1, "preempted", at, {"requests": row["num_preempted"]})

    def _hardware(self) -> None:
        out, named = self._out, False
        for name in ("telemetry_cpu", "telemetry_gpu"):
            for batch in _batches(self._run, name, ["t_ns", "name", "value", "unit", "source"]):
                for row in batch.to_pylist():
                    if row["value"] is None:
                        continue
                    if not named:
                        out.process(HARDWARE, "hardware")
                        named = True
                    label = (
                        row["name"]
                        if row["source"] in (None, "psutil", "proc")
                        else f"{row['name']} {row['source']}"
                    )
                    out.counter(HARDWARE, f"{label} [{row['unit']}]", row["t_ns"], {"value": row["value"]})

    def _kernels(self) -> None:
        """Operators and kernels of profiled windows: a track per thread or stream, more for what overlaps."""
        out = self._out
        rows = sorted(
            (row for batch in _batches(self._run, "kernels", _KERNEL_COLUMNS) for row in batch.to_pylist()),
            key=lambda row: (row["track"], row["ts_ns"], -row["dur_ns"]),
        )
        if rows:
            out.process(KERNELS, "operators and kernels")
        tid, track = 0, ""
        stack: list[list[int]] = []
        for row in rows:
            if row["track"] != track:
                tid, track, stack = tid + len(stack) + 1, row["track"], []
            end = row["ts_ns"] + row["dur_ns"]
            level = _nesting_level(stack, row["ts_ns"], end)
            if level == len(stack):
                stack.append([])
                out.thread(KERNELS, tid + level, track if level == 0 else f"{track} (overlap {level})")
            stack[level].append(end)
            args = {k: row[k] for k in ("cls", "correlation", "step_id") if row[k] is not None}
            out.slice(KERNELS, tid + level, row["name"], row["ts_ns"], row["dur_ns"], args)


def _nesting_level(stack: list[list[int]], start: int, end: int) -> int:
    """First track on which [start, end) nests into what is open there."""
    for level, open_ends in enumerate(stack):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            return level
    return len(stack)


def _flow_id(core_id: str) -> int:
    return zlib.crc32(core_id.encode("utf-8", "replace"))


def _batches(run: Run, name: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    path = run.path / f"{name}.parquet"
    if path.is_file():
        with pq.ParquetFile(path) as file:
            check_columns(path, file.schema_arrow, SCHEMAS[name], columns)
            yield from file.iter_batches(_BATCH, columns=columns)
