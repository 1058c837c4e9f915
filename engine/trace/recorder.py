"""The step thread's side of the trace: rows go into preallocated rings. No I/O, no lock, no conversion here.

One thread records, one thread (:mod:`engine.trace.writer`) drains. Both only ever move their own counter,
and storing a reference in a list is atomic, so no lock is needed. A full ring drops the new row and
counts it.
"""

from __future__ import annotations

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

    __slots__ = ("_capacity", "_head", "_slots", "_tail", "num_dropped")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: list[Row | None] = [None] * capacity
        self._head = 0  # moved by the producer only
        self._tail = 0  # moved by the consumer only
        self.num_dropped = 0
        """Rows lost because the consumer was too slow."""

    def put(self, row: Row) -> None:
        head = self._head
        if head - self._tail >= self._capacity:
            self.num_dropped += 1
            return
        self._slots[head % self._capacity] = row
        self._head = head + 1  # only now can the consumer see the row

    def drain(self) -> list[Row]:
        """All rows that are there, oldest first."""
        head, rows = self._head, []
        for position in range(self._tail, head):
            slot = position % self._capacity
            row = self._slots[slot]
            self._slots[slot] = None
            if row is not None:
                rows.append(row)
        self._tail = head
        return rows


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
