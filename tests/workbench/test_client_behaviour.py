"""Hanging up on purpose, trying again, pacing, and the card that the client writes about itself."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.workbench.mock import requests, send
from workbench.benchspec import BenchSpec
from workbench.load.measure import hang_ups
from workbench.load.pacer import Pacer
from workbench.mock_server import MockServer, Script
from workbench.selftest import drive
from workloads import RequestClass, WorkloadSpec, build

PLAIN = WorkloadSpec(classes=(RequestClass(input_tokens=4, output_tokens=1),))


def bench(**fields) -> BenchSpec:
    return BenchSpec.create(workload=PLAIN, base_url="http://h:1", **fields)


def test_the_share_of_hang_ups_is_exact_and_the_seeds():
    workload = build(PLAIN, seed=0, nonce="", num_requests=40)
    chosen = hang_ups(workload, bench(cancellation_rate=0.3, cancellation_delay_s=0.25, seed=1))
    assert len(chosen) == 12
    assert set(chosen.values()) == {250_000_000}
    assert chosen == hang_ups(workload, bench(cancellation_rate=0.3, cancellation_delay_s=0.25, seed=1))
    assert chosen != hang_ups(workload, bench(cancellation_rate=0.3, cancellation_delay_s=0.25, seed=2))
    assert hang_ups(workload, bench()) == {}


async def test_who_is_hung_up_on_is_told_and_nobody_else_is_harmed():
    server = MockServer(Script(hang_after=2))
    prepared = [replace(r, cancel_after_ns=150_000_000) for r in requests(6)]
    result = await send(server, prepared)
    assert [(r.status, r.error_class) for r in result.records] == [("cancelled", "cancelled")] * 6
    assert all(r.close_ns - r.sent_ns >= 150_000_000 for r in result.records)
    assert {r.output_tokens for r in result.records} == {2}
    assert {a.outcome for a in server.arrivals} == {"gone"}
    quick = await send(MockServer(), [replace(r, cancel_after_ns=30_000_000_000) for r in requests(3)])
    assert {r.status for r in quick.records} == {"ok"}


@pytest.mark.parametrize(
    ("status", "retries", "failures", "attempts", "ok"),
    [
        (503, 0, 1, 1, False),
        (503, 1, 1, 2, True),
        (429, 3, 2, 3, True),
        (503, 1, 9, 2, False),
        (400, 3, 1, 1, False),
    ],
)
async def test_trying_again(status, retries, failures, attempts, ok):
    seen = 0

    def script(_body):
        nonlocal seen
        seen += 1
        return Script(status=status) if seen <= failures else Script()

    result = await send(MockServer(script), requests(1), retries=retries)
    (record,) = result.records
    assert record.attempts == attempts == seen
    assert (record.status == "ok") == ok
    assert result.retries == attempts - 1
    if ok:
        assert record.error is None
        assert record.output_tokens == 4
        # Latency begins with the first sending: the pauses are in it.
        assert record.first_token_ns - record.sent_ns >= (attempts - 1) * 100_000_000


async def test_what_has_begun_is_never_sent_twice():
    server = MockServer(Script(cut_after=1))
    result = await send(server, requests(1), retries=5)
    assert result.records[0].error_class == "truncated"
    assert len(server.arrivals) == 1


async def test_the_pacer_is_never_early():
    with Pacer() as pacer:
        start = time.monotonic_ns()
        for step in range(40):
            due = start + step * 700_000
            await pacer.until(due)
            assert time.monotonic_ns() >= due
        await pacer.until(0)  # long past: at once


async def test_the_pacer_without_timerfd(monkeypatch):
    with Pacer() as pacer:
        monkeypatch.setattr(pacer, "_arm", lambda _due: False)
        due = time.monotonic_ns() + 3_000_000
        await pacer.until(due)
        assert time.monotonic_ns() >= due


def test_the_null_server_sees_every_request_where_the_client_sent_it():
    done = drive([i * 2_000_000 for i in range(40)], tokens=3, itl_ms=1.0)
    assert (done.ok, done.workers, len(done.arrivals)) == (40, 1, 40)
    for record in done.result.records:
        assert record.intended_ns <= record.sent_ns <= done.arrivals[record.request_id] <= record.headers_ns
        assert [c.n_tokens for c in record.chunks] == [1, 1, 1, 0, 0]
    assert (done.arrival_offsets_ns >= [i * 2_000_000 for i in range(40)]).all()
    closed = drive([None] * 30, max_concurrency=4)
    assert (closed.ok, len(closed.arrivals)) == (30, 30)
