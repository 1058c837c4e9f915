"""The client's own card: how exactly this machine sends, and how much of it, with next to nothing behind.

``workbench bench --self-test`` prints it. Loads go the way of every run (pacing, workers, parser), against
:mod:`workbench.null_server`, whose stamps of the requests' first bytes are the judge.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.benchspec import Deadlines
from workbench.errors import TargetError
from workbench.load.bodies import Features, prepare
from workbench.load.deal import worker_count
from workbench.load.loops import loop_runner
from workbench.load.pool import play_in_workers
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.wire import open_session
from workbench.metrics.validity import LAG_FLOOR_MS
from workloads import WorkloadRequest

RATES = (100.0, 1000.0)
STREAMS = (200.0, 400.0)
"""Streams begun per second, each of :data:`EVENTS` events, :data:`ITL_MS` apart: as many are in flight."""
EVENTS, ITL_MS = 100, 10.0
_PROMPT = np.arange(1, 9, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Drive:
    """A load against the null server, as both ends saw it."""

    result: LoadResult
    arrivals: dict[str, int]
    """Request id → ns of its first byte at the server."""
    workers: int

    @property
    def lag_ms(self) -> np.ndarray:
        """[n] Sending after release."""
        stamps = [(r.sent_ns, r.released_ns) for r in self.result.records if r.sent_ns and r.released_ns]
        return np.array([(sent - released) / 1e6 for sent, released in stamps])

    @property
    def arrival_offsets_ns(self) -> np.ndarray:
        """[n] Arrival after the schedule's origin, in the order of the schedule."""
        found = [self.arrivals.get(r.request_id) for r in self.result.records]
        return np.array([at - self.result.start_ns for at in found if at is not None], np.int64)

    @property
    def seconds(self) -> float:
        """From the first sending to the last close."""
        closed = [r.close_ns for r in self.result.records if r.close_ns is not None]
        return (max(closed) - self.result.start_ns) / 1e9

    @property
    def events(self) -> int:
        return sum(len(r.chunks) for r in self.result.records)

    @property
    def ok(self) -> int:
        return sum(r.status == "ok" for r in self.result.records)


@contextmanager
def null_server(ttft_ms: float = 0.0, itl_ms: float = 0.0) -> Iterator[str]:
    """Base URL of a null server in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "workbench.null_server",
        "--ttft-ms",
        str(ttft_ms),
        "--itl-ms",
        str(itl_ms),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line.startswith("http"):
            raise TargetError("the self-test's server did not start")
        yield line.strip()
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def drive(
    offsets_ns: Sequence[int | None],
    *,
    tokens: int = 1,
    itl_ms: float = 0.0,
    workers: int | None = None,
    max_concurrency: int | None = None,
) -> Drive:
    """Send one request per offset (None: a closed loop), each answered with ``tokens`` events."""
    requests = [
        WorkloadRequest(
            i, offset, "self-test", tokens, prompt_token_ids=_PROMPT, num_prompt_tokens=len(_PROMPT)
        )
        for i, offset in enumerate(offsets_ns)
    ]
    prepared = prepare(
        requests,
        model="null",
        endpoint="completions",
        features=Features(),
        phase="measure",
        id_prefix="s",
        extra_body={},
    )
    with null_server(itl_ms=itl_ms) as url:
        path = f"{url}/v1/completions"
        plan = LoadPlan(prepared, path, max_concurrency=max_concurrency)
        warmup = LoadPlan(prepared[:50], path, max_concurrency=10)
        count = worker_count(plan, workers)
        with loop_runner() as runner:
            result = runner.run(_play(warmup, plan, count, f"{url}/mock/log"))
        arrivals = _log(f"{url}/mock/log")
    return Drive(result, arrivals, count)


async def _play(warmup: LoadPlan, plan: LoadPlan, workers: int, log: str) -> LoadResult:
    async with open_session({}, Deadlines()) as session:
        await play(warmup, session)
        async with session.get(log) as answer:  # reading the log empties it
            await answer.read()
        if workers == 1:
            return await play(plan, session)
    return await play_in_workers(plan, workers, {})


def _log(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return {row["request_id"]: row["arrived_ns"] for row in json.load(answer)["arrivals"]}


def client_card(seconds: float = 4.0, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Measure this machine's client; some half a minute with the default.

    Returns:
        ``{"rates": [...], "streams": [...], "ceiling": {...}}``: delivered share and lateness per rate,
        events per
        second, and the requests per second of a closed loop. ``fit`` says whether dispatch lag p99 stays
        under the
        bound at which a run calls itself invalid.
    """
    tell = say or (lambda _text: None)
    card: dict[str, Any] = {"rates": [], "streams": []}
    for rate in RATES:
        tell(f"{rate:g} requests/s for {seconds:g} s")
        offsets = [round(i * 1e9 / rate) for i in range(round(rate * seconds))]
        done = drive(offsets)
        late = (done.arrival_offsets_ns - np.array(offsets[: len(done.arrival_offsets_ns)])) / 1e6
        card["rates"].append(
            {
                "requested_rate": rate,
                "delivered_share": len(done.arrivals) / len(offsets),
                "arrival_late_p50_ms": _percentile(late, 50),
                "arrival_late_p99_ms": _percentile(late, 99),
                **_common(done),
            }
        )
    for rate in STREAMS:
        tell(f"{rate:g} streams/s of {EVENTS} events, {ITL_MS:g} ms apart, for {seconds:g} s")
        offsets = [round(i * 1e9 / rate) for i in range(round(rate * seconds))]
        done = drive(offsets, tokens=EVENTS, itl_ms=ITL_MS)
        card["streams"].append(
            {"requested_events_s": rate * EVENTS, "events_s": full_rate(done), **_common(done)}
        )
    tell(f"closed loop of 32 for {seconds:g} s")
    count = round(3000 * seconds)
    done = drive([None] * count, max_concurrency=32, workers=1)
    card["ceiling"] = {"request_s": done.ok / done.seconds, **_common(done)}
    return card


def full_rate(done: Drive) -> float:
    """Events per second between the first second and the last sending, while as many streams end as begin."""
    stamps = np.array([c.recv_ns for r in done.result.records for c in r.chunks], np.int64)
    begin, end = done.result.start_ns + 1_000_000_000, max(r.sent_ns or 0 for r in done.result.records)
    inside = int(((stamps >= begin) & (stamps < end)).sum())
    return inside / ((end - begin) / 1e9)


def _common(done: Drive) -> dict[str, Any]:
    lag_p99 = _percentile(done.lag_ms, 99)
    return {
        "ok": done.ok,
        "workers": done.workers,
        "lag_p50_ms": _percentile(done.lag_ms, 50),
        "lag_p99_ms": lag_p99,
        "loop_lag_p99_ms": _percentile(np.array(done.result.loop_lag_ms), 99),
        "cpu_percent": 100.0 * done.result.cpu_s / done.seconds,
        "fit": lag_p99 is not None and lag_p99 <= LAG_FLOOR_MS and done.ok == len(done.result.records),
    }


def _percentile(values: np.ndarray, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
