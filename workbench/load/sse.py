"""Server-sent events from raw bytes, incrementally: any split of the same bytes gives the same events.

Follows the event stream grammar of the HTML standard on *bytes*: lines end in CRLF, LF or CR and in nothing
else, so U+2028 or U+0085
inside a string never breaks a line, and a multi-byte character that is cut by the network is never decoded
half.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    name: bytes
    """``event:`` field; empty for a plain message."""
    data: bytes
    """``data:`` lines joined by LF."""


class SseParser:
    """Feed it reads as they come; it returns the events that each read completed."""

    __slots__ = ("_data", "_name", "_pieces", "_skip_lf", "_start")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the unfinished line
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._name = b""
        self._skip_lf = False  # the last read ended in CR: an LF that follows belongs to it
        self._start: bytes | None = b""  # first bytes, until it is known whether they are a byte order mark

    def feed(self, read: bytes) -> list[SseEvent]:
        """Events completed by ``read`` (any bytes, also none)."""
        if not read:
            return []
        if (whole := self._whole(read)) is not None:
            return whole
        if self._start is not None:
            read = self._start + read
            if len(read) < len(_BOM) and _BOM.startswith(read):
                self._start = read
                return []
            self._start = None
            read = read.removeprefix(_BOM)
            if not read:
                return []
        if self._skip_lf:
            self._skip_lf = False
            if read[0] == 0x0A:
                read = read[1:]
                if not read:
                    return []
        if b"\r" in read:
            self._skip_lf = read[-1] == 0x0D
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in read:
            self._pieces.append(read)
            return []
        lines = read.split(b"\n")
        if self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
        rest = lines.pop()
        self._pieces = [rest] if rest else []
        events: list[SseEvent] = []
        for line in lines:
            self._line(line, events)
        return events

    def _whole(self, read: bytes) -> list[SseEvent] | None:
        """What nearly every read is: whole events of one data line each. None: it is something else."""
        if (
            self._start is not None
            or self._pieces
            or self._data
            or self._name
            or self._skip_lf
            or not read.endswith(b"\n\n")
            or b"\r" in read
        ):
            return None
        parts = read[:-2].split(b"\n\n")
        if read.count(b"\n") != 2 * len(parts):
            return None
        for part in parts:
            if not part.startswith(b"data: "):
                return None
        return [SseEvent(b"", part[6:]) for part in parts]

    def close(self) -> list[SseEvent]:
        """End of the stream: the event that lacks its blank line, if any.

        The standard drops it, but servers exist that end with ``data: [DONE]`` and no blank line.
        """
        read = (self._start or b"") + b"".join(self._pieces)
        self._pieces, self._start = [], None
        events: list[SseEvent] = []
        if read:
            self._line(read, events)
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            if self._data:
                events.append(SseEvent(self._name, b"\n".join(self._data)))
                self._data = []
            self._name = b""
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        # Comments (empty field name), id, retry and unknown fields carry nothing for us.
