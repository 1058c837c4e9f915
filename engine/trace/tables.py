"""The trace's two tables on disk: Arrow IPC streams while the engine runs, Parquet files when it has ended.

A stream is a file that grows by whole record batches, so what a crashed engine left can be read up to its
last batch. :func:`finalize_trace` turns streams into Parquet, after an orderly end and after a crash alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.trace.recorder import Row
from engine.trace.records import (
    EVENT_COLUMNS,
    EVENTS_SCHEMA_VERSION,
    STEP_COLUMNS,
    STEPS_SCHEMA_VERSION,
)

_ARROW_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}
_ROWS_PER_GROUP = 65_536


@dataclass(frozen=True, slots=True)
class TraceTable:
    """One table: ``steps`` or ``events``."""

    name: str
    schema: pa.Schema
    version: int

    def stream_path(self, trace_dir: Path) -> Path:
        return trace_dir / f"{self.name}.arrows"

    def parquet_path(self, trace_dir: Path) -> Path:
        return trace_dir / f"{self.name}.parquet"

    def warm_up(self) -> None:
        """Convert a row of nulls: the first conversion of a process imports half a library (0.2 s of CPU),
        which must not happen while requests are served.
        """
        self.batch([(None,) * len(self.schema)])

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Rows as recorded, in the order of the schema."""
        columns = zip(*rows, strict=True)
        arrays = [
            pa.array(column, type=kind) for column, kind in zip(columns, self.schema.types, strict=True)
        ]
        return pa.record_batch(arrays, schema=self.schema)


def _table(name: str, columns: tuple[tuple[str, str], ...], version: int) -> TraceTable:
    return TraceTable(name, pa.schema([(column, _ARROW_TYPES[kind]) for column, kind in columns]), version)


STEPS = _table("steps", STEP_COLUMNS, STEPS_SCHEMA_VERSION)
EVENTS = _table("events", EVENT_COLUMNS, EVENTS_SCHEMA_VERSION)
TABLES = (STEPS, EVENTS)
DROPPED = b"dropped"
"""Metadata key: rows lost so far because the writer was too slow."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a finished table holds. ``complete`` False: its engine crashed, the last rows may be missing."""

    name: str
    num_rows: int
    num_dropped: int
    complete: bool


def finalize_trace(trace_dir: str | Path) -> list[TableSummary]:
    """Turn every stream in ``trace_dir`` into its Parquet file, atomically, and remove the stream.

    Safe to call at any time after the engine has ended, also twice, also after a crash in the middle of it.

    Returns:
        A summary of each table that was finished by this call.
    """
    folder = Path(trace_dir)
    return [_finalize(table, folder) for table in TABLES if table.stream_path(folder).exists()]


def _finalize(table: TraceTable, folder: Path) -> TableSummary:
    stream = _StreamReader(table, table.stream_path(folder))
    target = table.parquet_path(folder)
    partial = target.with_suffix(".parquet.partial")
    num_rows = 0
    with pq.ParquetWriter(partial, table.schema, compression="zstd") as writer:
        for group in stream.groups():
            writer.write_table(group)
            num_rows += group.num_rows
        writer.add_key_value_metadata(
            {
                "schema_version": str(table.version),
                "dropped": str(stream.num_dropped),
                "complete": str(stream.complete).lower(),
            }
        )
    _sync(partial)
    os.replace(partial, target)
    table.stream_path(folder).unlink()
    return TableSummary(table.name, num_rows, stream.num_dropped, stream.complete)


class _StreamReader:
    """Reads whole batches until the stream ends, or is torn."""

    def __init__(self, table: TraceTable, path: Path) -> None:
        self._table = table
        self._path = path
        self.num_dropped = 0
        self.complete = False

    def groups(self) -> Iterator[pa.Table]:
        """Batches gathered to row groups of a good size."""
        gathered: list[pa.RecordBatch] = []
        num_rows = 0
        for batch in self._batches():
            gathered.append(batch)
            num_rows += batch.num_rows
            if num_rows >= _ROWS_PER_GROUP:
                yield pa.Table.from_batches(gathered, self._table.schema)
                gathered, num_rows = [], 0
        yield pa.Table.from_batches(gathered, self._table.schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        num_rows = -1
        with pa.OSFile(str(self._path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                while True:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                    self.num_dropped = int(metadata[DROPPED])
                    num_rows = batch.num_rows
                    yield batch
            except StopIteration:
                # The reader also stops quietly where a file was cut between two batches: only a stream that
                # was closed has a batch of no rows at its end.
                self.complete = num_rows == 0
            except (pa.ArrowInvalid, OSError):
                self.complete = False


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
