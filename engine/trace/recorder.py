"""The step thread's side of the trace: rows go into bounded rings. No I/O, no lock, no conversion here.

One thread records, one thread (:mod:`engine.trace.writer`) drains. One only appends and the other only takes
from the front, both of which a deque does atomically, so no lock is needed. A full ring drops the new row
and counts it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

Row = tuple[Any, ...]


class TraceRecorder(Protocol):
    """Where the core leaves its records. ``enabled`` False: rows need not even be built."""

    enabled: bool

    def record_step(self, row: Row) -> None:
        """One row of :data:`engine.trace.records.STEP_COLUMNS`."""
        ...

    def record_event(self, row: Row) -> None:
        """One row of :data:`engine.trace.records.EVENT_COLUMNS`."""
        ...

    def close(self) -> None:
        """Write what is left. May be called twice."""
        ...


class NullRecorder:
    """No trace."""

    enabled = False

    def record_step(self, row: Row) -> None:
        pass

    def record_event(self, row: Row) -> None:
        pass

    def close(self) -> None:
        pass


class ListRecorder:
    """Keeps every row in memory: for the simulator and for tests."""

    enabled = True

    def __init__(self) -> None:
        self.steps: list[Row] = []
        self.events: list[Row] = []

    def record_step(self, row: Row) -> None:
        self.steps.append(row)

    def record_event(self, row: Row) -> None:
        self.events.append(row)

    def close(self) -> None:
        pass


class Ring:
    """Bounded queue between exactly one producer and one consumer thread.

    Args:
        capacity: rows that can wait.
    """

    __slots__ = ("_append", "_capacity", "_rows", "num_dropped")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows: deque[Row] = deque()
        self._append = self._rows.append
        self.num_dropped = 0
        """Rows lost because the consumer was too slow."""

    def put(self, row: Row) -> None:
        if len(self._rows) < self._capacity:
            self._append(row)
        else:
            self.num_dropped += 1

    def drain(self) -> list[Row]:
        """All rows that are there, oldest first."""
        take = self._rows.popleft
        return [take() for _ in range(len(self._rows))]


class RingRecorder:
    """Steps and events in two rings.

    Args:
        step_capacity, event_capacity: rows that can wait for the writer; both hold many times what comes
            between two drains.
    """

    enabled = True

    def __init__(self, step_capacity: int = 16_384, event_capacity: int = 65_536) -> None:
        self.steps = Ring(step_capacity)
        self.events = Ring(event_capacity)
        self.record_step = self.steps.put
        self.record_event = self.events.put

    def close(self) -> None:
        pass
