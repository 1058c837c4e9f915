"""Plays a schedule: absolute deadlines, never a sleep of "one gap", so lateness is measured and does not
add up.

Three loops in one: open (due requests go out at once), closed (a request goes out when one ends), hybrid
(due requests wait for a free slot; the wait counts in ``*_sched`` latencies and not as lag of the client).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from workbench.benchspec import Deadlines
from workbench.load import errors
from workbench.load.bodies import PreparedRequest
from workbench.load.client import Flight, fly
from workbench.load.progress import BenchProgress, LoadCounters, ProgressCallback
from workbench.load.record import RequestRecord

LEAD_NS = 20_000_000
"""From the call to the first request: time to set everything up."""
_WATCH_S = 0.02
_SHOW_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A share of a schedule for one worker. ``start_ns`` is the schedule's origin on the host's monotonic
    clock."""

    requests: Sequence[PreparedRequest]
    url: str
    max_concurrency: int | None = None
    max_seconds: float | None = None
    grace_s: float = 30.0
    deadlines: Deadlines = field(default_factory=Deadlines)
    start_ns: int | None = None
    worker: int = 0
    phase: str = "measuring"

    @property
    def loop(self) -> str:
        """open | closed | hybrid"""
        if any(r.offset_ns is None for r in self.requests):
            return "closed"
        return "open" if self.max_concurrency is None else "hybrid"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Records of everything offered, in the order of the schedule."""

    records: list[RequestRecord]
    start_ns: int
    end_ns: int
    interrupted: bool
    """Ctrl-C, or cancelled from outside."""
    cut: bool
    """``max_seconds`` ended it before the schedule did."""
    loop_lag_ms: list[float] = field(default_factory=list)
    """Lateness of the event loop's own timer, sampled all along."""


async def play(
    plan: LoadPlan, session: aiohttp.ClientSession, progress: ProgressCallback | None = None
) -> LoadResult:
    """Send ``plan`` and wait for the answers. A cancellation ends it early but still returns what was
    recorded."""
    with _quiet_gc():
        return await _Player(plan, session, progress).run()


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """No garbage collection while measuring: a collection of a large heap stops the loop for milliseconds."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class _Player:
    def __init__(
        self, plan: LoadPlan, session: aiohttp.ClientSession, progress: ProgressCallback | None
    ) -> None:
        self._plan = plan
        self._session = session
        self._progress = progress
        self._counters = LoadCounters(planned=len(plan.requests))
        self._slots = plan.max_concurrency or len(plan.requests) or 1
        self._waiting: deque[tuple[PreparedRequest, RequestRecord]] = deque()
        self._flights: set[Flight] = set()
        self._records: list[RequestRecord] = []
        self._lags: list[float] = []
        self._idle = asyncio.Event()
        self._start_ns = 0
        self._shown_ns = 0
        last = plan.requests[-1].offset_ns if plan.requests else None
        self._expected_s = None if last is None else last / 1e9

    async def run(self) -> LoadResult:
        plan = self._plan
        self._start_ns = plan.start_ns or time.monotonic_ns() + LEAD_NS
        interrupted = cut = False
        watchdog = asyncio.create_task(self._watch())
        try:
            try:
                async with asyncio.timeout(self._limit_s()):
                    await self._dispatch()
                    await self._drained()
            except TimeoutError:
                cut = self._waiting_or_undue()
                self._shed()
                await self._grace()
        except asyncio.CancelledError:
            interrupted = True
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            self._shed()
            await self._give_up()
        finally:
            watchdog.cancel()
            await asyncio.gather(watchdog, return_exceptions=True)
        self._show(force=True)
        records = sorted(self._records, key=lambda r: r.index)
        return LoadResult(records, self._start_ns, time.monotonic_ns(), interrupted, cut, self._lags)

    def _limit_s(self) -> float | None:
        """Seconds from now to the end of sending."""
        if self._plan.max_seconds is None:
            return None
        return self._plan.max_seconds + (self._start_ns - time.monotonic_ns()) / 1e9

    async def _dispatch(self) -> None:
        """Make every request due at its time."""
        for request in self._plan.requests:
            due_ns = self._start_ns + (request.offset_ns or 0)
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                # The loop's timer ticks in milliseconds and may fire early; the last stretch yields without
                # sleeping.
                await asyncio.sleep(left_ns / 1e9 if left_ns > 1_000_000 else 0)
            record = RequestRecord(
                request_id=request.request_id,
                index=request.index,
                phase=request.phase,
                group=request.group,
                max_tokens=request.max_tokens,
                worker=self._plan.worker,
                intended_ns=None if request.offset_ns is None else due_ns,
                released_ns=due_ns,
            )
            self._waiting.append((request, record))
            self._release(due_ns)

    def _release(self, free_ns: int) -> None:
        """Send what waits while there are slots. ``free_ns``: since when the client had reason to send."""
        while self._waiting and len(self._flights) < self._slots:
            request, record = self._waiting.popleft()
            record.released_ns = max(free_ns, record.released_ns or 0)
            flight = Flight(record)
            self._flights.add(flight)
            self._records.append(record)
            self._counters.sent += 1
            self._idle.clear()
            coroutine = fly(flight, request, self._session, self._plan.url, self._counters)
            flight.task = asyncio.create_task(coroutine)
            flight.task.add_done_callback(lambda _task, flight=flight: self._landed(flight))  # type: ignore[misc]

    def _landed(self, flight: Flight) -> None:
        self._flights.discard(flight)
        record, counters = flight.record, self._counters
        if record.close_ns is None:
            # Cancelled before its first step: it never ran.
            record.status, record.error_class = "cancelled", errors.CANCELLED
        if record.status == "ok":
            counters.ok += 1
        elif record.status == "failed":
            counters.failed += 1
        else:
            counters.cancelled += 1
        self._release(time.monotonic_ns())
        if not self._flights and not self._waiting:
            self._idle.set()

    async def _drained(self) -> None:
        while self._flights or self._waiting:
            self._idle.clear()
            await self._idle.wait()

    def _waiting_or_undue(self) -> bool:
        return bool(self._waiting) or len(self._records) < len(self._plan.requests)

    def _shed(self) -> None:
        """What was due and could not be sent was offered all the same: it is recorded. In a closed loop
        nothing is due."""
        if self._plan.loop != "closed":
            for _request, record in self._waiting:
                record.status, record.error_class = "cancelled", errors.CANCELLED
                record.released_ns = None
                record.error = "due, but no slot before the run ended"
                self._counters.cancelled += 1
                self._records.append(record)
        self._waiting.clear()

    async def _grace(self) -> None:
        try:
            async with asyncio.timeout(self._plan.grace_s):
                await self._drained()
        except TimeoutError:
            await self._give_up()

    async def _give_up(self) -> None:
        tasks = [flight.task for flight in self._flights if flight.task is not None]
        for flight in self._flights:
            flight.give_up = errors.CANCELLED
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Deadlines of all flights, the loop's own lateness, and the display."""
        deadlines = self._plan.deadlines
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic_ns()
            self._lags.append(max(0.0, (now - before) / 1e6 - _WATCH_S * 1e3))
            for flight in tuple(self._flights):
                overdue = flight.overdue(now, deadlines) if flight.give_up is None else None
                if overdue is not None and flight.task is not None:
                    flight.give_up = overdue
                    flight.task.cancel()
            self._show()

    def _show(self, force: bool = False) -> None:
        now = time.monotonic_ns()
        if self._progress is None or (not force and now - self._shown_ns < _SHOW_NS):
            return
        self._shown_ns = now
        counters = self._counters
        self._progress(
            BenchProgress(
                phase=self._plan.phase,
                elapsed_s=max(0.0, (now - self._start_ns) / 1e9),
                planned=counters.planned,
                sent=counters.sent,
                ok=counters.ok,
                failed=counters.failed,
                in_flight=len(self._flights),
                tokens=counters.tokens,
                expected_s=self._expected_s,
            )
        )
