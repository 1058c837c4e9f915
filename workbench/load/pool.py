"""A schedule played by several worker processes, as one: same start, one progress, one result."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import TargetError
from workbench.load.deal import deal
from workbench.load.frames import (
    HEADER_BYTES,
    Finished,
    Job,
    Ready,
    Start,
    Stop,
    Tick,
    length,
    pack,
    unpack,
)
from workbench.load.progress import BenchProgress, ProgressCallback
from workbench.load.runner import LEAD_NS, LoadPlan, LoadResult

_READY_S = 120.0
_STOP_S = 30.0


async def play_in_workers(
    plan: LoadPlan, workers: int, headers: Mapping[str, str], progress: ProgressCallback | None = None
) -> LoadResult:
    """As :func:`workbench.load.runner.play`, by ``workers`` processes. Cancelling it ends them and still
    returns
    what they recorded.

    Raises:
        TargetError: a worker ended by itself; its share of the records is lost.
    """
    hands = [_Worker(share, headers) for share in deal(plan, workers)]
    try:
        async with asyncio.timeout(_READY_S):
            await asyncio.gather(*(hand.prepare() for hand in hands))
        start_ns = time.monotonic_ns() + LEAD_NS
        for hand in hands:
            hand.say(Start(start_ns))
        display = _Display(plan, hands, start_ns, progress)
        results = asyncio.gather(*(hand.finish(display) for hand in hands))
        try:
            parts = await asyncio.shield(results)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            for hand in hands:
                hand.say(Stop())
            async with asyncio.timeout(_STOP_S + plan.grace_s):
                parts = await results
        return merge(parts)
    except TimeoutError:
        raise TargetError("the load generator's worker processes do not answer") from None
    finally:
        await asyncio.gather(*(hand.end() for hand in hands))


def merge(parts: Sequence[LoadResult]) -> LoadResult:
    """One result of all shares, records in the order of the schedule."""
    return LoadResult(
        records=sorted((record for part in parts for record in part.records), key=lambda r: r.index),
        start_ns=parts[0].start_ns,
        end_ns=max(part.end_ns for part in parts),
        interrupted=any(part.interrupted for part in parts),
        cut=any(part.cut for part in parts),
        loop_lag_ms=[lag for part in parts for lag in part.loop_lag_ms],
        retries=sum(part.retries for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
    )


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, plan: LoadPlan, headers: Mapping[str, str]) -> None:
        self._plan = plan
        self._headers = dict(headers)
        self._process: asyncio.subprocess.Process | None = None
        self.now = BenchProgress(phase=plan.phase, planned=len(plan.requests))

    async def prepare(self) -> None:
        # A session of its own: Ctrl-C is ours to pass on.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workbench.load.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.say(Job(self._plan, self._headers, self._plan.deadlines))
        stdin = self._process.stdin
        if stdin is not None:
            await stdin.drain()
        if not isinstance(await self._read(), Ready):
            raise TargetError("a worker process of the load generator did not start")

    def say(self, message: object) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(pack(message))

    async def finish(self, display: _Display) -> LoadResult:
        while True:
            message = await self._read()
            if isinstance(message, Finished):
                return message.result
            if isinstance(message, Tick):
                self.now = message.now
                display.show()

    async def _read(self) -> Any:
        stdout = self._process.stdout if self._process is not None else None
        if stdout is None:
            raise TargetError("a worker process of the load generator was not started")
        try:
            header = await stdout.readexactly(HEADER_BYTES)
            return unpack(await stdout.readexactly(length(header)))
        except asyncio.IncompleteReadError:
            raise TargetError("a worker process of the load generator ended by itself") from None

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _Display:
    """Sums what the workers tell."""

    def __init__(
        self, plan: LoadPlan, hands: Sequence[_Worker], start_ns: int, progress: ProgressCallback | None
    ) -> None:
        self._plan = plan
        self._hands = hands
        self._start_ns = start_ns
        self._progress = progress
        offsets = [r.offset_ns for r in plan.requests if r.offset_ns is not None]
        self._expected_s = max(offsets) / 1e9 if offsets else None

    def show(self) -> None:
        if self._progress is None:
            return
        parts = [hand.now for hand in self._hands]
        self._progress(
            BenchProgress(
                phase=self._plan.phase,
                elapsed_s=max(0.0, (time.monotonic_ns() - self._start_ns) / 1e9),
                planned=len(self._plan.requests),
                sent=sum(part.sent for part in parts),
                ok=sum(part.ok for part in parts),
                failed=sum(part.failed for part in parts),
                in_flight=sum(part.in_flight for part in parts),
                tokens=sum(part.tokens for part in parts),
                expected_s=self._expected_s,
                recent_ttft_ms=tuple(ms for part in parts for ms in part.recent_ttft_ms),
            )
        )
