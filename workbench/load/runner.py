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
from workbench.load.errors import RequestError
from workbench.load.pacer import Pacer
from workbench.load.post import Post
from workbench.load.progress import BenchProgress, LoadCounters, ProgressCallback
from workbench.load.record import RequestRecord
from workbench.load.turns import Turns

LEAD_NS = 20_000_000
"""From the call to the first request: time to set everything up."""
_WATCH_NS = 20_000_000
_WATCH_S = _WATCH_NS / 1e9
_READ_NS = 500_000
"""How long the watchdog reads streams before whatever else waits gets its turn."""
_LATE_NS, _PATIENCE_NS = 3_000_000, 200_000_000
"""A loop that is so late has no time for reading, but for no longer than this."""
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
    retries: int = 0

    @property
    def loop(self) -> str:
        """open | closed | hybrid. Later turns of a session have no place in the schedule in any of them."""
        if any(r.offset_ns is None and (r.turn is None or r.turn.number == 0) for r in self.requests):
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
    retries: int = 0
    cpu_s: float = 0.0
    """CPU time of the worker's process while it played."""


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
        self._post = Post(session, plan.url)
        self._progress = progress
        self._counters = LoadCounters(planned=len(plan.requests))
        self._turns = Turns(plan.requests)
        self._openings = [r for r in plan.requests if r.turn is None or r.turn.number == 0]
        self._slots = plan.max_concurrency or len(plan.requests) or 1
        self._closed = plan.loop == "closed"
        self._waiting: deque[tuple[PreparedRequest, RequestRecord]] = deque()
        self._flights: set[Flight] = set()
        self._thinking: dict[int, asyncio.TimerHandle] = {}
        """Sessions between two turns."""
        self._records: list[RequestRecord] = []
        self._lags: list[float] = []
        self._idle = asyncio.Event()
        self._start_ns = 0
        self._shown_ns = 0
        last = self._openings[-1].offset_ns if self._openings else None
        self._expected_s = None if last is None else last / 1e9

    async def run(self) -> LoadResult:
        plan = self._plan
        cpu_s = time.process_time()
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
        return LoadResult(
            records=sorted(self._records, key=lambda r: r.index),
            start_ns=self._start_ns,
            end_ns=time.monotonic_ns(),
            interrupted=interrupted,
            cut=cut,
            loop_lag_ms=self._lags,
            retries=self._counters.retries,
            cpu_s=time.process_time() - cpu_s,
        )

    def _limit_s(self) -> float | None:
        """Seconds from now to the end of sending."""
        if self._plan.max_seconds is None:
            return None
        return self._plan.max_seconds + (self._start_ns - time.monotonic_ns()) / 1e9

    async def _dispatch(self) -> None:
        """Make every opening request due at its time; all that are due go out in one turn of the loop."""
        with Pacer() as pacer:
            for request in self._openings:
                due_ns = self._start_ns + (request.offset_ns or 0)
                await pacer.until(due_ns)
                self._due(request, due_ns, None if request.offset_ns is None else due_ns)

    def _due(self, request: PreparedRequest, due_ns: int, intended_ns: int | None) -> None:
        record = self._record(request)
        record.intended_ns, record.released_ns = intended_ns, due_ns
        self._waiting.append((request, record))
        self._release(due_ns)

    def _record(self, request: PreparedRequest) -> RequestRecord:
        turn = request.turn
        return RequestRecord(
            request_id=request.request_id,
            index=request.index,
            phase=request.phase,
            group=request.group,
            max_tokens=request.max_tokens,
            worker=self._plan.worker,
            session=None if turn is None else turn.session,
            turn=None if turn is None else turn.number,
        )

    def _release(self, free_ns: int) -> None:
        """Send what waits while there are slots. ``free_ns``: since when the client had reason to send.

        In a closed loop a session keeps its slot while its user thinks: slots are users there.
        """
        while self._waiting and len(self._flights) + self._held() < self._slots:
            request, record = self._waiting.popleft()
            record.released_ns = max(free_ns, record.released_ns or 0)
            self._send(request, record)

    def _held(self) -> int:
        return len(self._thinking) if self._closed else 0

    def _send(self, request: PreparedRequest, record: RequestRecord) -> None:
        flight = Flight(record, request, self._counters)
        self._flights.add(flight)
        self._records.append(record)
        self._counters.sent += 1
        self._idle.clear()
        body = self._turns.body(request)
        coroutine = fly(flight, body, self._post, self._plan.retries)
        flight.task = asyncio.create_task(coroutine)
        flight.task.add_done_callback(lambda _task, flight=flight: self._landed(flight))  # type: ignore[misc]
        if request.cancel_after_ns is not None:
            self._hang_up(flight, request.cancel_after_ns)

    def _hang_up(self, flight: Flight, after_ns: int) -> None:
        """Hang up ``after_ns`` after the sending, on purpose."""
        if flight.give_up is not None or flight.task is None or flight.task.done():
            return
        sent_ns, now = flight.record.sent_ns, time.monotonic_ns()
        left_ns = after_ns if sent_ns is None else sent_ns + after_ns - now
        if left_ns > 0:
            asyncio.get_running_loop().call_later(left_ns / 1e9, self._hang_up, flight, after_ns)
            return
        flight.give_up = errors.CANCELLED
        flight.reason = "hung up on purpose (cancellation rate)"
        flight.task.cancel()

    def _landed(self, flight: Flight) -> None:
        self._flights.discard(flight)
        record, counters = flight.record, self._counters
        if record.close_ns is None:
            # Cancelled before its first step: it never ran.
            record.status, record.error_class = "cancelled", errors.CANCELLED
        if record.status == "ok":
            counters.ok += 1
            if record.first_token_ns is not None and record.sent_ns is not None:
                counters.recent_ttft_ms.append((record.first_token_ns - record.sent_ns) / 1e6)
        elif record.status == "failed":
            counters.failed += 1
        else:
            counters.cancelled += 1
        self._converse(flight)
        self._release(time.monotonic_ns())
        if self._at_rest():
            self._idle.set()

    def _converse(self, flight: Flight) -> None:
        """What the end of a turn means for its session."""
        turn = flight.request.turn
        if turn is None:
            return
        if flight.record.status != "ok":
            for lost in self._turns.drop(flight.request):
                record = self._record(lost)
                record.status, record.error_class = "cancelled", errors.CANCELLED
                record.error = "an earlier turn of its session did not succeed"
                self._counters.cancelled += 1
                self._records.append(record)
            return
        following = self._turns.after(flight)
        if following is None or following.turn is None:
            return
        due_ns = (flight.record.last_token_ns or time.monotonic_ns()) + following.turn.think_ns
        pause_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        timer = asyncio.get_running_loop().call_later(pause_s, self._speak, following, due_ns)
        self._thinking[turn.session] = timer

    def _speak(self, request: PreparedRequest, due_ns: int) -> None:
        """The user of a session has thought: its next turn is due."""
        if request.turn is not None:
            self._thinking.pop(request.turn.session, None)
        if self._closed:
            record = self._record(request)
            record.released_ns = due_ns
            self._send(request, record)
        else:
            self._due(request, due_ns, due_ns)

    def _at_rest(self) -> bool:
        return not (self._flights or self._waiting or self._thinking)

    async def _drained(self) -> None:
        while not self._at_rest():
            self._idle.clear()
            await self._idle.wait()

    def _waiting_or_undue(self) -> bool:
        return bool(self._waiting or self._thinking) or len(self._records) < len(self._plan.requests)

    def _shed(self) -> None:
        """What was due and could not be sent was offered all the same: it is recorded. In a closed loop
        nothing is due."""
        for timer in self._thinking.values():
            timer.cancel()
        self._thinking.clear()
        if not self._closed:
            for _request, record in self._waiting:
                record.status, record.error_class = "cancelled", errors.CANCELLED
                record.released_ns = None
                record.error = "due, but no slot before the run ended"
                self._counters.cancelled += 1
                self._records.append(record)
        self._waiting.clear()
        self._turns = Turns(())

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
        """Reading and deadlines of all flights, the loop's own lateness, and the display."""
        read_ns = 0
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic_ns()
            self._lags.append(max(0.0, (now - before) / 1e6 - _WATCH_S * 1e3))
            if now - before < _WATCH_NS + _LATE_NS or now - read_ns > _PATIENCE_NS:
                read_ns = now
                await self._read(now)
            self._show()

    async def _read(self, now_ns: int) -> None:
        turn_ns = now_ns
        for flight in tuple(self._flights):
            self._look_after(flight, now_ns)
            if time.monotonic_ns() - turn_ns > _READ_NS:
                await asyncio.sleep(0)  # what is due goes out first
                turn_ns = time.monotonic_ns()

    def _look_after(self, flight: Flight, now_ns: int) -> None:
        """Read what came, and give the flight up when a deadline has passed or its stream tells an error."""
        if (
            flight.task is None
            or flight.task.done()
            or flight.give_up is not None
            or flight.failure is not None
        ):
            return
        try:
            flight.catch_up()
        except RequestError as error:
            flight.failure = error
            flight.task.cancel()
            return
        flight.give_up = flight.overdue(now_ns, self._plan.deadlines)
        if flight.give_up is not None:
            flight.task.cancel()

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
                recent_ttft_ms=tuple(counters.recent_ttft_ms),
            )
        )
