"""Requests that are being answered: admission, drain, and the end of those that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from engine.messages import SchedulerStats
from engine.server.errors import ApiError, queue_full, shutting_down


class Inflight:
    """Counts requests and sequences, and knows their tasks.

    Args:
        max_num_seqs: sequences that the engine runs at the same time.
        max_waiting: waiting sequences above which new requests are refused with 429; None: no limit.
    """

    def __init__(self, max_num_seqs: int, max_waiting: int | None) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_waiting = max_waiting
        self._tasks: dict[asyncio.Task[object], int] = {}
        self._sequences = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended_by: ApiError | None = None
        self.draining = False

    @property
    def requests(self) -> int:
        return len(self._tasks)

    @property
    def sequences(self) -> int:
        return self._sequences

    @property
    def ended_by(self) -> ApiError | None:
        """Why the tasks were cancelled by :meth:`abort_all`, if they were."""
        return self._ended_by

    @contextmanager
    def admit(self, sequences: int, stats: SchedulerStats | None) -> Iterator[None]:
        """Hold a place for the current task's request of ``sequences`` sequences.

        ``stats`` is the engine's last snapshot. It knows of requests that wait for KV blocks; what has
        arrived since is known only here, hence the larger of both. A snapshot can be stale, so it never
        counts more than what is in flight.

        Raises:
            ApiError: 503 while draining, 429 when the queue is full.
        """
        if self.draining:
            raise shutting_down()
        if self._max_waiting is not None:
            reported = min(stats.num_waiting, self._sequences) if stats else 0
            if max(reported, self._sequences - self._max_num_seqs) >= self._max_waiting:
                raise queue_full(self._max_waiting)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("admit() outside of a task")
        self._tasks[task] = sequences
        self._sequences += sequences
        self._idle.clear()
        try:
            yield
        finally:
            del self._tasks[task]
            self._sequences -= sequences
            if not self._tasks:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """True as soon as nothing is in flight, False after ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self, reason: ApiError) -> None:
        """Cancel every request; each answers its client with ``reason``."""
        self._ended_by = reason
        for task in self._tasks:
            task.cancel()
