"""The trace's other thread: drains the rings into the streams, and turns them into Parquet at the end."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pyarrow as pa

from engine.errors import InvalidInputError
from engine.trace.recorder import Ring, RingRecorder
from engine.trace.tables import DROPPED, EVENTS, STEPS, TABLES, TraceTable, finalize_trace

logger = logging.getLogger(__name__)

DRAIN_INTERVAL_S = 0.5
"""A drain costs up to 1 ms of CPU (cold caches) however little there is; a crash loses this much trace."""


class TraceWriter(RingRecorder):
    """A recorder whose rows go to ``trace_dir``: ``steps.arrows`` and ``events.arrows`` while it is open,
    ``steps.parquet`` and ``events.parquet`` after :meth:`close`.

    The step thread only fills the rings; a daemon thread drains them every ``interval_s``. If writing fails
    (a full disk), the trace ends with a log line and the engine goes on; rows from then on count as dropped.

    Args:
        trace_dir: created if need be; must not hold an earlier trace.
        interval_s: seconds between two drains.
        step_capacity, event_capacity: rows that can wait for a drain.

    Raises:
        InvalidInputError: the folder holds a trace already or can't be written.
    """

    def __init__(
        self,
        trace_dir: str | Path,
        *,
        interval_s: float = DRAIN_INTERVAL_S,
        step_capacity: int = 16_384,
        event_capacity: int = 65_536,
    ) -> None:
        super().__init__(step_capacity, event_capacity)
        self._folder = Path(trace_dir)
        self._interval_s = interval_s
        for table in TABLES:
            table.warm_up()
        self._streams = _open_streams(self._folder, [(STEPS, self.steps), (EVENTS, self.events)])
        self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Rows of both tables that were lost."""
        return self.steps.num_dropped + self.events.num_dropped

    def close(self) -> None:
        """Write what is left and finish the tables. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        self._thread.join()
        try:
            finalize_trace(self._folder)
        except OSError as error:
            logger.error("the trace in %s stays unfinished: %s", self._folder, error)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                for stream in self._streams:
                    stream.drain()
            for stream in self._streams:
                stream.drain()
                stream.close()
        except (OSError, pa.ArrowException) as error:
            logger.error("the trace in %s ends here: %s", self._folder, error)


class _Stream:
    """One ring and the file it goes to."""

    def __init__(self, table: TraceTable, folder: Path, ring: Ring) -> None:
        self._table = table
        self._ring = ring
        self._file = table.stream_path(folder).open("xb")
        self._writer = pa.ipc.new_stream(self._file, table.schema)
        self._file.flush()

    def drain(self) -> None:
        rows = self._ring.drain()
        if rows:
            self._write(self._table.batch(rows))

    def close(self) -> None:
        """An empty batch says that nothing is missing."""
        self._write(pa.RecordBatch.from_pylist([], schema=self._table.schema))
        self._writer.close()
        self._file.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, custom_metadata={DROPPED: str(self._ring.num_dropped)})
        self._file.flush()  # a crash of this process loses nothing that was flushed


def _open_streams(folder: Path, rings: list[tuple[TraceTable, Ring]]) -> list[_Stream]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            for path in (table.stream_path(folder), table.parquet_path(folder)):
                if path.exists():
                    raise InvalidInputError("trace_dir", str(folder), f"a folder without {path.name}")
        return [_Stream(table, folder, ring) for table, ring in rings]
    except OSError as error:
        raise InvalidInputError("trace_dir", str(folder), f"a writable folder ({error.strerror})") from None
