"""Reads a Kineto trace (torch.profiler's export: ours, vLLM's, SGLang's) into one table of rows.

Nanoseconds stay whole. ``correlation`` joins a launch with what it started on the GPU, ``External id`` with
the operator that was open; they are different numbers. Rows without a time or length are no work: they are
counted and left out.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from workbench.errors import RunCorruptError

KERNELS_SCHEMA_VERSION = 1
KERNELS = pa.schema(
    [
        ("name", pa.string()),
        ("cat", pa.string()),  # Kineto's: cpu_op, kernel, gpu_memcpy, cuda_runtime ...
        ("cls", pa.string()),  # compute | communication | memory | sync | launch | operator | annotation
        ("track", pa.string()),  # "thread 17" or "GPU 0 stream 7"
        ("ts_ns", pa.int64()),  # monotonic clock where the window's clock pair is known, else the trace's own
        ("dur_ns", pa.int64()),
        ("correlation", pa.int64()),
        ("external_id", pa.int64()),
        ("graph_id", pa.int64()),
        ("graph_node_id", pa.int64()),
        ("step_id", pa.int64()),  # null: in no profiled step
    ]
)

MAX_BYTES = 512 << 20
_MOST_NS = (1 << 63) - 1
_MOST_US = _MOST_NS // 1000
GPU_CATS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME_CATS = frozenset({"cuda_runtime", "cuda_driver"})
STEP_NAME = re.compile(r"(?:step#|ProfilerStep#)(\d+)")
_KEPT = GPU_CATS | RUNTIME_CATS | {"cpu_op", "user_annotation", "cuda_sync"}
_COMMUNICATION = re.compile(r"^(?:nccl|rccl|msccl)|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)
_SYNC = re.compile(r"Synchronize|cudaMemcpy$|cuMemcpy\w*(?<!Async)$")
_LAUNCH = re.compile(r"Launch|Memcpy\w*Async|Memset\w*Async")


@dataclass(slots=True)
class Row:
    """One span of work."""

    name: str
    cat: str
    cls: str
    track: str
    ts_ns: int
    dur_ns: int
    correlation: int | None = None
    external_id: int | None = None
    graph_id: int | None = None
    graph_node_id: int | None = None
    step_id: int | None = None

    @property
    def end_ns(self) -> int:
        return self.ts_ns + self.dur_ns

    @property
    def on_gpu(self) -> bool:
        return self.cat in GPU_CATS


@dataclass(slots=True)
class KinetoTrace:
    """Rows in order of time; what was left out by reason."""

    rows: list[Row]
    left_out: dict[str, int] = field(default_factory=dict)


def read_trace(path: Path, shift_ns: int = 0) -> KinetoTrace:
    """Read ``path`` (``.json`` or ``.json.gz``).

    Args:
        shift_ns: added to every stamp: from the trace's clock (the wall's) to the monotonic one.

    Raises:
        RunCorruptError: it is no Kineto trace, or larger than :data:`MAX_BYTES`.
    """
    try:
        data = _read_bytes(path)
        content = msgspec.json.Decoder(float_hook=Decimal).decode(data)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunCorruptError(f"{path}: {error}") from None
    events, base = content, 0
    if isinstance(content, dict):
        events = content.get("traceEvents")
        base = _integer(content.get("baseTimeNanoseconds")) or 0
    if not isinstance(events, list):
        raise RunCorruptError(f"{path}: no traceEvents: not a Kineto trace")
    return collect(events, base + shift_ns)


def collect(events: Iterable[Any], base_ns: int = 0) -> KinetoTrace:
    """Rows of Chrome trace events as Kineto writes them; ``base_ns`` is added to every stamp."""
    found = KinetoTrace([])
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or str(event.get("cat")) not in _KEPT:
            continue
        row = _row(event, base_ns)
        if isinstance(row, str):
            found.left_out[row] = found.left_out.get(row, 0) + 1
        else:
            found.rows.append(row)
    found.rows.sort(key=lambda row: (row.ts_ns, -row.dur_ns))
    _assign_steps(found.rows)
    return found


def kernels_table(rows: Sequence[Row]) -> pa.Table:
    """``kernels.parquet``."""
    return pa.Table.from_arrays(
        [pa.array([getattr(row, f.name) for row in rows], type=f.type) for f in KERNELS], schema=KERNELS
    )


def _read_bytes(path: Path) -> bytes:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RunCorruptError(f"{path}: larger than {MAX_BYTES >> 20} MiB: profile fewer steps")
    return data


def _nanoseconds(value: Any) -> int | None:
    """Microseconds with fractions to whole ns; None: no time that fits into 64 bits."""
    try:
        found = Decimal(value)
        return int((found * 1000).to_integral_value()) if -_MOST_US < found < _MOST_US else None
    except (InvalidOperation, TypeError, ValueError):
        return None


def _row(event: dict[str, Any], base_ns: int) -> Row | str:
    """A row, or why there is none."""
    ts, dur = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    if ts is None or dur is None or abs(ts + base_ns) > _MOST_NS:
        return "no time"
    cat = str(event["cat"])
    if cat in GPU_CATS and (ts <= 0 or dur <= 0):
        return "zero time"
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    name = str(event.get("name", ""))
    if cat in GPU_CATS:
        track = f"GPU {args.get('device', event.get('pid'))} stream {args.get('stream', event.get('tid'))}"
    else:
        track = f"thread {event.get('tid')}"
    return Row(
        name=name,
        cat=cat,
        cls=_class(cat, name),
        track=track,
        ts_ns=ts + base_ns,
        dur_ns=max(0, dur),
        correlation=_integer(args.get("correlation")),
        external_id=_integer(args.get("External id")),
        graph_id=_integer(args.get("graph id")),
        graph_node_id=_integer(args.get("graph node id")),
    )


def _class(cat: str, name: str) -> str:
    if cat == "kernel":
        return "communication" if _COMMUNICATION.search(name) else "compute"
    if cat in GPU_CATS:
        return "memory"
    if cat in RUNTIME_CATS:
        return "sync" if _SYNC.search(name) else "launch" if _LAUNCH.search(name) else "runtime"
    return {"cpu_op": "operator", "user_annotation": "annotation"}.get(cat, "sync")


def _integer(value: Any) -> int | None:
    """0 means that there is no link."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number and abs(number) < 1 << 63 else None


def _assign_steps(rows: Sequence[Row]) -> None:
    """CPU rows by the step that was open; GPU rows by their launch, wherever they ran: kernels of a graph may
    come long after it.
    """
    windows = [
        (row.ts_ns, row.end_ns, int(match[1]))
        for row in rows
        if row.cat == "user_annotation" and (match := STEP_NAME.search(row.name))
    ]
    by_correlation: dict[int, int] = {}
    by_external: dict[int, int] = {}
    place = 0
    for row in rows:
        if row.on_gpu:
            continue
        while place < len(windows) and windows[place][1] <= row.ts_ns:
            place += 1
        if place < len(windows) and windows[place][0] <= row.ts_ns < windows[place][1]:
            row.step_id = windows[place][2]
            if row.correlation is not None:
                by_correlation[row.correlation] = row.step_id
            if row.external_id is not None and row.cat == "cpu_op":
                by_external[row.external_id] = row.step_id
    for row in rows:
        if row.on_gpu:
            row.step_id = by_correlation.get(row.correlation or 0, by_external.get(row.external_id or 0))
