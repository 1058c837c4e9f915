"""Open, closed and hybrid loops; ends by time, by grace, by interruption."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.workbench.mock import requests, running, send
from workbench.benchspec import Deadlines
from workbench.load.progress import BenchProgress
from workbench.load.runner import LoadPlan, play
from workbench.load.wire import open_session
from workbench.mock_server import MockServer, Script


def most_at_once(server: MockServer) -> int:
    """As the server saw it: from arrival to its last event."""
    edges = [(a.arrived_ns, 1) for a in server.arrivals] + [(a.sent_ns[-1], -1) for a in server.arrivals]
    level = peak = 0
    for _at, change in sorted(edges):
        level += change
        peak = max(peak, level)
    return peak


async def test_nothing_is_sent_early_and_order_is_kept():
    server = MockServer()
    result = await send(server, requests(30, every_ms=3))
    assert all(r.sent_ns >= r.intended_ns for r in result.records)
    gaps = {b.intended_ns - a.intended_ns for a, b in zip(result.records, result.records[1:], strict=False)}
    assert gaps == {3_000_000}
    names = [f"q{i}" for i in range(30)]
    assert [r.request_id for r in sorted(result.records, key=lambda r: r.sent_ns)] == names
    # Not in order: a request on a new connection may arrive after a later one on an open connection.
    assert sorted(a.request_id for a in server.arrivals) == sorted(names)
    assert not result.cut
    assert not result.interrupted


async def test_closed_loop_keeps_its_number():
    server = MockServer(Script(ttft_ms=10))
    result = await send(server, requests(12, every_ms=None), max_concurrency=3)
    assert most_at_once(server) == 3
    assert {r.status for r in result.records} == {"ok"}
    assert {r.intended_ns for r in result.records} == {None}
    ends = sorted(r.close_ns for r in result.records)
    # Number k can only go when k − 3 have ended.
    for k, record in enumerate(sorted(result.records, key=lambda r: r.sent_ns)):
        assert k < 3 or record.sent_ns >= ends[k - 3]
        assert record.released_ns <= record.sent_ns


async def test_a_slow_server_can_not_hide_behind_the_concurrency_limit():
    """D/D/1: due every 10 ms, served in 30 ms one at a time: request i waits i·20 ms, send-anchored latency
    shows none of it."""
    server = MockServer(Script(ttft_ms=30))
    result = await send(server, requests(8, every_ms=10, max_tokens=1), max_concurrency=1)
    for i, record in enumerate(result.records):
        assert record.first_token_ns - record.intended_ns >= (30 + i * 20) * 1_000_000
        assert record.first_token_ns - record.sent_ns >= 30_000_000
        assert record.released_ns >= record.intended_ns
    assert most_at_once(server) == 1


async def test_max_seconds_stops_sending_and_lets_flights_land():
    server = MockServer(Script(ttft_ms=100))
    result = await send(server, requests(200, every_ms=20), max_seconds=0.2)
    assert result.cut
    assert len(result.records) <= 11
    assert {r.status for r in result.records} <= {"ok"}
    assert all(r.intended_ns - result.start_ns <= 200_000_000 for r in result.records)


async def test_grace_ends():
    server = MockServer(Script(hang_after=1))
    result = await send(server, requests(3), max_seconds=0.5, grace_s=0.1)
    assert [(r.status, r.error_class) for r in result.records] == [("cancelled", "cancelled")] * 3
    assert {r.output_tokens for r in result.records} == {1}


async def test_what_was_due_and_never_sent_was_offered():
    server = MockServer(Script(hang_after=0))
    plan = {"max_concurrency": 1, "max_seconds": 0.5, "grace_s": 0.05}
    result = await send(server, requests(4, every_ms=10), **plan)
    assert len(result.records) == 4
    assert [r.sent_ns is None for r in result.records] == [False, True, True, True]
    closed = await send(MockServer(Script(hang_after=0)), requests(4, every_ms=None), **plan)
    assert len(closed.records) == 1  # a closed loop owes nothing


@pytest.mark.parametrize("every_ms", [0.0, 5.0, None])
async def test_an_interruption_keeps_what_was_recorded(every_ms):
    server = MockServer(Script(itl_ms=5))
    async with running(server) as url, open_session({}, Deadlines()) as session:
        plan = LoadPlan(
            requests(400, every_ms=every_ms, max_tokens=20), f"{url}/v1/completions", max_concurrency=20
        )
        shown: list[BenchProgress] = []
        task = asyncio.create_task(play(plan, session, shown.append))
        while not shown or shown[-1].ok < 3:
            await asyncio.sleep(0.005)
        task.cancel()
        result = await task
    assert result.interrupted
    statuses = [r.status for r in result.records]
    assert statuses.count("ok") >= 3
    assert set(statuses) == {"ok", "cancelled"}
    assert len({r.index for r in result.records}) == len(result.records)


async def test_garbage_collection_is_as_before():
    assert gc.isenabled()
    await send(MockServer(), requests(1))
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


async def test_progress_ends_with_the_truth():
    shown: list[BenchProgress] = []
    server = MockServer(Script(itl_ms=2))
    async with running(server) as url, open_session({}, Deadlines()) as session:
        plan = LoadPlan(requests(10, every_ms=5, max_tokens=6), f"{url}/v1/completions")
        await play(plan, session, shown.append)
    last = shown[-1]
    assert (last.planned, last.sent, last.ok, last.failed, last.in_flight, last.tokens) == (
        10,
        10,
        10,
        0,
        0,
        60,
    )
    assert [p.done for p in shown] == sorted(p.done for p in shown)
    assert last.eta_s == 0


def test_eta_follows_the_schedule_while_it_lasts():
    now = BenchProgress(phase="measuring", elapsed_s=10, planned=100, ok=50, expected_s=60.0)
    assert now.eta_s == 50
    late = BenchProgress(phase="measuring", elapsed_s=80, planned=100, ok=40, expected_s=60.0)
    assert late.eta_s == 120
    assert BenchProgress(phase="measuring", planned=9).eta_s is None
