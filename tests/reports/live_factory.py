"""A run that is being written: its manifest says running, its trace grows as the engine's does."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pyarrow as pa

from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from engine.trace.tables import EVENTS, STEPS, TraceTable
from workbench.atomic import write_json
from workbench.manifest import ClockPair, Manifest, TargetInfo

MS = 1_000_000


class GrowingRun:
    """One step computes every running request's next token and takes 100 ms; ``finish`` ends a request."""

    def __init__(self, root: Path, run_id: str = "growing", planned: int = 8, *, alive: bool = True) -> None:
        """``alive`` False: the process that wrote it is gone."""
        self.folder = root / run_id
        (self.folder / "trace").mkdir(parents=True)
        self.start = ClockPair.now()
        manifest = Manifest(
            id=run_id, created="2026-11-29T10:00:00Z", name="a growing run", tool_version="0.1.0",
            target=TargetInfo(kind="builtin", model="smollm2-135m"), load={"num_requests": planned},
            workload={"name": "chat"}, clock=[self.start], status="running",
            pid=os.getpid() if alive else 2**22 - 1,
            pid_created=psutil.Process().create_time() if alive else 1.0,
        )  # fmt: skip
        write_json(self.folder / "manifest.json", manifest.model_dump(mode="json"))
        self._files = {t.name: t.stream_path(self.folder / "trace").open("xb") for t in (STEPS, EVENTS)}
        self._writers = {t.name: pa.ipc.new_stream(self._files[t.name], t.schema) for t in (STEPS, EVENTS)}
        self._steps = 0

    def add(self, *, finished: list[str], running: int = 2, waiting: int = 1) -> None:
        """One more step, with the end of ``finished`` behind it."""
        start = self.start.monotonic_ns + self._steps * 100 * MS
        step = dict.fromkeys(name for name, _ in STEP_COLUMNS) | {
            "step_id": self._steps, "t_start": start, "t_schedule": start + MS, "t_prepare": start + 2 * MS,
            "t_forward": start + 90 * MS, "t_sample": start + 95 * MS, "t_end": start + 100 * MS,
            "prefill_tokens": 0, "decode_tokens": 4, "num_decode_reqs": 4, "num_running": running,
            "num_waiting": waiting, "admission_stop": "queue_empty", "kv_used": 4, "kv_free": 10,
            "kv_cached": 2, "num_preempted": 0,
        }  # fmt: skip
        self._write(STEPS, [tuple(step.values())])
        rows = []
        for name in finished:
            for kind, when in (("queued", start), ("finished", start + 100 * MS)):
                row = dict.fromkeys(column for column, _ in EVENT_COLUMNS)
                row |= {"t_ns": when, "request_id": name, "core_id": name, "kind": kind}
                rows.append(tuple(row.values()))
        self._write(EVENTS, rows)
        self._steps += 1

    def _write(self, table: TraceTable, rows: list[tuple[object, ...]]) -> None:
        if rows:
            self._writers[table.name].write_batch(table.batch(rows))
            self._files[table.name].flush()

    def cut(self, lost: int = 40) -> None:
        """Take the last bytes off both streams: a reader sees a batch that is not whole yet."""
        for table in (STEPS, EVENTS):
            path = table.stream_path(self.folder / "trace")
            path.write_bytes(path.read_bytes()[:-lost])

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def now_ns(self) -> int:
        """Wall clock at the end of the last step."""
        return self.start.wall_ns + self._steps * 100 * MS
