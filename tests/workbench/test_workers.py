"""Several worker processes: the same schedule, the same bytes, one result."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workbench.mock import requests, running
from workbench.errors import TargetError
from workbench.load.bodies import Features, prepare
from workbench.load.deal import RATE_PER_WORKER, STREAMS_PER_WORKER, busiest_second, deal, worker_count
from workbench.load.pool import merge, play_in_workers
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.wire import open_session
from workbench.mock_server import MockServer, Script
from workloads import Arrivals, RequestClass, SessionsSource, WorkloadSpec, build

URL = "http://127.0.0.1:9/v1/completions"
MIXED = WorkloadSpec(
    arrivals=Arrivals(kind="poisson", rate=100.0),
    classes=(
        RequestClass(name="a", weight=2, input_tokens=(4, 9), output_tokens=(1, 3)),
        RequestClass(name="b", input_tokens=20, output_tokens=2),
    ),
)
TALKS = WorkloadSpec(
    arrivals=Arrivals(kind="poisson", rate=100.0),
    source=SessionsSource(turns=(1, 4), first_input_tokens=6, input_tokens=2, output_tokens=2, think_s=0.01),
)


def prepared(spec: WorkloadSpec, count: int):
    return prepare(
        build(spec, seed=3, nonce="n", num_requests=count),
        model="mock",
        endpoint="completions",
        features=Features(),
        phase="measure",
        id_prefix="q",
        extra_body={},
    )


@given(workers=st.integers(1, 9), count=st.integers(1, 40), limit=st.none() | st.integers(9, 50))
def test_every_request_is_dealt_once_and_as_it_is(workers, count, limit):
    whole = prepared(MIXED, count)
    shares = deal(LoadPlan(whole, URL, max_concurrency=limit), workers)
    assert sorted((r for s in shares for r in s.requests), key=lambda r: r.index) == whole
    assert [share.worker for share in shares] == list(range(workers))
    for share in shares:
        assert [r.index for r in share.requests] == sorted(r.index for r in share.requests)
    sizes = [len(share.requests) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if limit is not None:
        assert sum(share.max_concurrency for share in shares) == limit
        assert min(share.max_concurrency for share in shares) >= 1


@given(workers=st.integers(1, 5))
def test_a_session_stays_with_one_worker(workers):
    shares = deal(LoadPlan(prepared(TALKS, 20), URL), workers)
    homes = {}
    for share in shares:
        for request in share.requests:
            assert homes.setdefault(request.turn.session, share.worker) == share.worker
    assert len(homes) == 20


@pytest.mark.parametrize(
    ("every_ms", "count", "limit", "asked", "expected"),
    [
        (10.0, 200, None, None, 1),
        (10.0, 200, None, 4, 4),
        (10.0, 3, None, 4, 3),
        (10.0, 200, 2, 4, 2),
        (0.4, 5000, None, None, 2),
        (0.6, 4000, None, None, 1),
        (0.0, 100, None, None, 1),
        (0.0, 1500, None, None, 2),
        (None, 3000, 1500, None, 2),
        (None, 3000, 900, None, 1),
    ],
)
def test_how_many(monkeypatch, every_ms, count, limit, asked, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    plan = LoadPlan(requests(count, every_ms=every_ms), URL, max_concurrency=limit)
    assert worker_count(plan, asked) == expected
    assert (RATE_PER_WORKER, STREAMS_PER_WORKER) == (2000, 1000)


def test_the_busiest_second_of_a_ramp():
    plan = requests(1, every_ms=0) + requests(300, every_ms=10)
    assert busiest_second(plan) == 100


async def test_the_same_bytes_and_times_with_one_two_and_four_workers():
    seen = {}
    for workers in (1, 2, 4):
        server = MockServer(Script())
        async with running(server) as url:
            plan = LoadPlan(prepared(MIXED, 24), f"{url}/v1/completions")
            if workers == 1:
                async with open_session({}, plan.deadlines) as session:
                    result = await play(plan, session)
            else:
                result = await play_in_workers(plan, workers, {"X-Test": "1"})
        assert {r.status for r in result.records} == {"ok"}
        assert {r.worker for r in result.records} == set(range(workers))
        assert all(r.sent_ns >= r.intended_ns for r in result.records)
        schedule = [(r.request_id, r.group, r.intended_ns - result.start_ns) for r in result.records]
        bodies = {a.request_id: a.body for a in server.arrivals}
        seen[workers] = (schedule, bodies)
    assert seen[1] == seen[2] == seen[4]


async def test_progress_and_interruption_reach_every_worker():
    server = MockServer(Script(itl_ms=2))
    shown = []
    async with running(server) as url:
        plan = LoadPlan(requests(400, every_ms=20, max_tokens=20), f"{url}/v1/completions")
        task = asyncio.create_task(play_in_workers(plan, 2, {}, shown.append))
        while not shown or shown[-1].ok < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        result = await task
    assert result.interrupted
    statuses = [r.status for r in result.records]
    assert statuses.count("ok") >= 4
    assert set(statuses) <= {"ok", "cancelled"}
    assert {r.worker for r in result.records} == {0, 1}
    assert shown[-1].planned == 400
    assert shown[-1].ok >= 1


async def test_a_worker_that_dies_is_no_silence(monkeypatch):
    server = MockServer(Script(hang_after=0))
    started = []
    spawn = asyncio.create_subprocess_exec

    async def remember(*arguments, **more):
        process = await spawn(*arguments, **more)
        started.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    async with running(server) as url:
        task = asyncio.create_task(play_in_workers(LoadPlan(requests(2), f"{url}/v1/completions"), 2, {}))
        while len(server.arrivals) < 2:
            await asyncio.sleep(0.01)
        started[0].kill()
        with pytest.raises(TargetError, match="ended by itself"):
            await task
    assert all(process.returncode is not None for process in started)


def test_merged_results_are_in_the_order_of_the_schedule():
    parts = [
        LoadResult([], 5, 9, False, True, [1.0], 1, 0.5),
        LoadResult([], 5, 12, True, False, [2.0], 2, 0.25),
    ]
    whole = merge(parts)
    assert (whole.end_ns, whole.interrupted, whole.cut) == (12, True, True)
    assert (whole.loop_lag_ms, whole.retries, whole.cpu_s) == ([1.0, 2.0], 3, 0.75)
