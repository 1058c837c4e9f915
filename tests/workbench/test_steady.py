"""The steady window, on runs whose steady part is known by construction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.workbench.tables import ORIGIN_NS, Book
from workbench.metrics.columns import read_requests
from workbench.metrics.compute import compute_metrics
from workbench.metrics.steady import find_window, in_flight, mser


def run(intervals, token_every=None):
    """Requests [sent, end) in ms; with ``token_every`` one token each so many ms."""
    book = Book()
    for sent, end in intervals:
        at = np.arange(sent + token_every, end + 1e-6, token_every) if token_every else [end]
        book.add(sent, [(float(t), 1) for t in at])
    return book


def metrics_of(book):
    requests, chunks = book.tables()
    return compute_metrics(requests, chunks, start_ns=ORIGIN_NS, loop="open", requested_rate=None, slo=None)


def window_of(book):
    requests, _ = book.tables()
    return find_window(read_requests(requests, ORIGIN_NS))


def filling(slots=20, service=1000.0, ramp=2000.0, end=12_000.0):
    """``slots`` users who start over ``ramp`` ms and then always have one request of ``service`` ms under
    way."""
    out = []
    for user in range(slots):
        at = user * ramp / slots
        while at < end:
            out.append((at, at + service))
            at += service
    return sorted(out)


def test_in_flight_is_the_time_average():
    start, end = np.array([0.0, 5.0, np.nan]), np.array([10.0, 7.0, 3.0])
    assert in_flight(start, end, np.array([0.0, 5.0, 10.0, 20.0])) == pytest.approx([1.0, 1.4, 0.0])


def test_mser_cuts_a_transient_and_nothing_else():
    rng = np.random.default_rng(0)
    flat = 10 + rng.normal(0, 0.5, 100)
    assert mser(flat) <= 10
    climbing = np.concatenate((np.linspace(0, 10, 30), flat[:70]))
    assert 20 <= mser(climbing) <= 35
    assert mser(np.full(50, 3.0)) == 0


def test_ramp_and_drain_are_outside():
    book = run(filling(), token_every=100.0)
    window = window_of(book)
    assert window.reason is None
    assert 1200 <= window.start <= 2600
    assert window.end <= 12_000
    metrics = metrics_of(book)
    steady = metrics["steady"]
    assert steady["found"]
    assert steady["mean_concurrency"] == pytest.approx(20, rel=0.03)
    # 20 users, a token each 100 ms: 200 tokens/s.
    low, high = steady["throughput"]["output_tok_s_ci"]
    assert low <= steady["throughput"]["output_tok_s"] <= high
    assert steady["throughput"]["output_tok_s"] == pytest.approx(200, rel=0.03)
    assert steady["throughput"]["request_s"] == pytest.approx(20, rel=0.05)
    assert steady["latency"]["e2el"]["p50"] == 1000
    assert metrics["throughput"]["output_tok_s"] < steady["throughput"]["output_tok_s"]


def test_a_growing_queue_is_not_steady():
    overloaded = [(i * 100.0, i * 200.0 + 200.0) for i in range(200)]
    window = window_of(run(overloaded))
    assert "does not settle" in window.reason
    assert metrics_of(run(overloaded))["steady"] == {
        "found": False,
        "reason": window.reason,
        "method": "mser",
    }


def test_a_server_that_died_is_not_steady():
    book = run(filling(end=3_000.0))
    for i in range(400):
        book.add(3_000.0 + 20.0 * i, [], close=3_000.5 + 20.0 * i, status="failed", error_class="connect")
    steady = metrics_of(book)["steady"]
    assert not steady["found"]
    assert "requests in it succeeded" in steady["reason"]


def test_poisson_below_capacity_is_steady():
    rng = np.random.default_rng(4)
    arrivals = np.cumsum(rng.exponential(100.0, 400))
    window = window_of(run([(at, at + 500.0) for at in arrivals]))
    assert window.reason is None
    assert window.end - window.start > 0.5 * arrivals[-1]


@pytest.mark.parametrize(
    ("intervals", "reason"),
    [
        ([(0.0, 10.0)] * 5, "5 requests were sent"),
        ([(0.0, 10.0 + i) for i in range(30)], "at once"),
        ([], "0 requests"),
    ],
)
def test_runs_without_a_steady_part_say_why(intervals, reason):
    assert reason in window_of(run(intervals)).reason


def test_moving_every_stamp_moves_the_window_and_nothing_else():
    plain = metrics_of(run(filling()))["steady"]
    moved = metrics_of(run([(a + 777.0, b + 777.0) for a, b in filling()]))["steady"]
    shift = moved["window"]["start_ns"] - plain["window"]["start_ns"]
    assert shift == 777_000_000
    assert moved["throughput"]["request_s"] == pytest.approx(plain["throughput"]["request_s"])
