"""Generations that are being answered: counted for ``/load``, waited for or ended when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from engine.server.errors import ApiError, shutting_down


class Inflight:
    """Knows the task of every generation. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended_by: ApiError | None = None
        self.draining = False

    @property
    def requests(self) -> int:
        return len(self._tasks)

    @property
    def ended_by(self) -> ApiError | None:
        """Why the tasks were cancelled by :meth:`abort_all`, if they were."""
        return self._ended_by

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count the current task's generation while the block lasts.

        Raises:
            ApiError: 503 while draining.
        """
        if self.draining:
            raise shutting_down()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a generation runs in a task")
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
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
        """Cancel every generation; each answers its client with ``reason``."""
        self._ended_by = reason
        for task in self._tasks:
            task.cancel()
