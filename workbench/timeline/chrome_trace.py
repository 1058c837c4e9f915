"""Writes Chrome's trace event format (JSON object form), as ui.perfetto.dev and chrome://tracing read it.

Events are formatted straight into a buffered file: a million of them take seconds and no memory. Times are
microseconds with three decimals after a base is taken off, so that no nanosecond is lost in a float64.

Slices of one track (``pid``, ``tid``) must nest, by the format's rules: :class:`Lanes` gives work that
overlaps tracks of its own.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

_BUFFER = 1 << 20


class ChromeTraceWriter:
    """Context manager around one file; a name that ends in ``.gz`` is compressed.

    Args:
        path: written in place; the caller decides about atomicity.
        base_ns: taken off every stamp, and stored as ``baseTimeNanoseconds``.
        metadata: further keys of the file's object.
    """

    def __init__(
        self, path: Path, base_ns: int, metadata: Mapping[str, Any], *, compress: bool = False
    ) -> None:
        self._base_ns = base_ns
        self._metadata = metadata
        self._path = path
        self._compress = compress
        self._first = True
        self.num_events = 0

    def __enter__(self) -> ChromeTraceWriter:
        raw: IO[bytes] = (
            gzip.open(self._path, "wb", compresslevel=3) if self._compress else self._path.open("wb", _BUFFER)  # type: ignore[assignment]
        )
        self._file = raw
        head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": self._base_ns, **self._metadata}
        self._file.write((json.dumps(head, ensure_ascii=False)[:-1] + ', "traceEvents": [').encode())
        self._lines: list[str] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._file.write(b"\n]}\n")
        self._file.close()

    def slice(
        self,
        pid: int,
        tid: int,
        name: str,
        start_ns: int,
        duration_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """A complete event: something that lasts."""
        start, tail = start_ns - self._base_ns, f',"args":{_json(args)}}}' if args else "}"
        self._put(
            f'{{"ph":"X","pid":{pid},"tid":{tid},"name":{_text(name)},'
            f'"ts":{start // 1000}.{start % 1000:03d},'
            f'"dur":{duration_ns // 1000}.{duration_ns % 1000:03d}{tail}'
        )

    def instant(
        self, pid: int, tid: int, name: str, at_ns: int, args: Mapping[str, Any] | None = None
    ) -> None:
        """A moment on a track."""
        at, tail = at_ns - self._base_ns, f',"args":{_json(args)}}}' if args else "}"
        self._put(
            f'{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"name":{_text(name)},'
            f'"ts":{at // 1000}.{at % 1000:03d}{tail}'
        )

    def counter(self, pid: int, name: str, at_ns: int, values: Mapping[str, float | int]) -> None:
        """A sample of one or more series of a counter track."""
        at = at_ns - self._base_ns
        self._put(
            f'{{"ph":"C","pid":{pid},"tid":0,"name":{_text(name)},"ts":{at // 1000}.{at % 1000:03d},'
            f'"args":{_json(values)}}}'
        )

    def flow(self, pid: int, tid: int, name: str, flow_id: int, at_ns: int, *, end: bool) -> None:
        """One end of an arrow between the slices that enclose ``at_ns``."""
        at, phase = at_ns - self._base_ns, '"f","bp":"e"' if end else '"s"'
        self._put(
            f'{{"ph":{phase},"id":{flow_id},"cat":"flow","pid":{pid},"tid":{tid},"name":{_text(name)},'
            f'"ts":{at // 1000}.{at % 1000:03d}}}'
        )

    def process(self, pid: int, name: str) -> None:
        """Name a group of tracks; groups are shown in the order of their pids."""
        self._put(f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_name","args":{_json({"name": name})}}}')
        self._put(
            f'{{"ph":"M","pid":{pid},"tid":0,"name":"process_sort_index","args":{{"sort_index":{pid}}}}}'
        )

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Name a track; tracks are shown in the order of their tids."""
        self._put(f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{_json({"name": name})}}}')
        self._put(
            f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_sort_index","args":{{"sort_index":{tid}}}}}'
        )

    def _put(self, line: str) -> None:
        self._lines.append(line)
        self.num_events += 1
        if len(self._lines) >= 8192:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            lead = "\n" if self._first else ",\n"
            self._file.write((lead + ",\n".join(self._lines)).encode("utf-8", "replace"))
            self._first = False
            self._lines.clear()


class Lanes:
    """Greedy interval colouring: the lowest lane that is free gets the next slice. Slices come in order of
    their starts.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._busy: list[tuple[int, int]] = []
        self.count = 0

    def place(self, start_ns: int, end_ns: int) -> int:
        """Lane (from 0) for a slice; it is taken until ``end_ns``."""
        while self._busy and self._busy[0][0] <= start_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self.count = self.count, self.count + 1
        heapq.heappush(self._busy, (max(end_ns, start_ns + 1), lane))
        return lane


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(values: Mapping[str, Any] | Iterable[Any] | None) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"), default=str)
