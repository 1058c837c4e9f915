"""Every metric against its formula on requests made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workbench.tables import ORIGIN_NS, Book
from workbench.metrics.compute import compute_metrics
from workbench.metrics.flat import LATENCIES, STATISTICS, flat
from workbench.metrics.load import peak_concurrency
from workbench.slo import parse_slo


def compute(book: Book, **more):
    requests, chunks = book.tables()
    arguments = {"start_ns": ORIGIN_NS, "loop": "open", "requested_rate": None, "slo": None, **more}
    return compute_metrics(requests, chunks, **arguments)


def one_request(**more) -> dict:
    """Sent at 100 (planned for 90), role event at 110, tokens: 2 at 150, 1 at 160, 4 at 200; closed at
    500."""
    book = Book()
    book.add(100, [(110, 0), (150, 2), (160, 1), (200, 4), (480, 0)], intended=90, close=500, **more)
    return compute(book)


def test_one_request_by_hand():
    latency = one_request()["latency"]
    assert latency["ttft"]["p50"] == 50  # 150 − 100: the role event does not count
    assert latency["ttft_sched"]["p50"] == 60  # 150 − 90
    assert latency["e2el"]["p50"] == 100  # 200 − 100: not the usage event at 480, not the close at 500
    assert latency["e2el_sched"]["p50"] == 110
    assert latency["tpot"]["p50"] == 10  # (200 − 150) / (7 − 2)
    assert latency["stall"]["p50"] == 40
    assert (latency["icl"]["n"], latency["icl"]["mean"], latency["icl"]["max"]) == (2, 25, 40)
    # Gaps 10 (one token) and 40 over four tokens: 10, 10, 10, 10, 10.
    assert (latency["itl"]["n"], latency["itl"]["mean"], latency["itl"]["std"]) == (5, 10, 0)


def test_throughput_counts_tokens_by_their_own_time():
    metrics = one_request()
    assert metrics["window"]["duration_s"] == 0.2  # origin to the last token
    assert metrics["throughput"] == {
        "output_tok_s": 7 / 0.2, "input_tok_s": 10 / 0.2, "total_tok_s": 17 / 0.2, "request_s": 1 / 0.2,
    }  # fmt: skip


def test_an_answer_in_one_event_has_no_gaps_and_no_tpot():
    book = Book()
    book.add(0, [(50, 8)])
    metrics = compute(book)
    for name in ("tpot", "itl", "icl", "stall"):
        assert metrics["latency"][name]["n"] == 0
        assert metrics["latency"][name]["p50"] is None
    assert metrics["latency"]["ttft"]["p50"] == metrics["latency"]["e2el"]["p50"] == 50


def test_failures_have_no_latency_but_their_tokens_were_made():
    book = Book()
    book.add(0, [(10, 1), (20, 1)])
    book.add(0, [(1, 1), (500, 1)], status="failed", error_class="truncated", close=600)
    book.add(0, [], status="failed", error_class="http_5xx", close=5)
    book.add(None, [], intended=3, status="cancelled", error_class="cancelled")
    metrics = compute(book)
    assert metrics["latency"]["ttft"]["n"] == 1
    assert metrics["latency"]["icl"]["max"] == 10
    counts = metrics["counts"]
    assert (counts["offered"], counts["ok"], counts["failed"], counts["cancelled"]) == (4, 1, 2, 1)
    assert counts["errors"] == {"truncated": 1, "http_5xx": 1}
    assert counts["output_tokens"] == 4
    assert counts["input_tokens"] == 20  # of the two prompts that got as far as a token
    assert metrics["window"]["duration_s"] == 0.6


def test_warm_up_is_not_measured():
    book = Book()
    book.add(0, [(999, 5)], phase="warmup")
    book.add(10, [(20, 1)])
    metrics = compute(book)
    assert metrics["counts"]["offered"] == 1
    assert metrics["counts"]["output_tokens"] == 1
    assert metrics["latency"]["ttft"]["max"] == 10


def test_not_known_is_null_and_not_zero():
    book = Book()
    book.add(0, [(10, 1)], prompt_tokens=None)
    metrics = compute(book)
    assert metrics["counts"]["cached_tokens"] is None
    assert metrics["counts"]["input_tokens"] is None
    assert metrics["throughput"]["input_tok_s"] is None
    assert metrics["throughput"]["total_tok_s"] is None
    book.add(0, [(10, 1)], prompt_tokens=4, cached_tokens=0)
    assert compute(book)["counts"]["cached_tokens"] == 0


def test_closed_loop_has_no_schedule_latencies():
    book = Book()
    record = book.add(0, [(10, 1)])
    record.intended_ns = None
    metrics = compute(book, loop="closed")
    assert metrics["latency"]["ttft_sched"]["n"] == 0
    assert metrics["latency"]["ttft"]["n"] == 1
    assert metrics["load"]["offered_rate"] is None


def test_an_empty_run_is_json_and_invalid():
    metrics = compute(Book(), slo=parse_slo("ttft:1"))
    assert "no request succeeded" in metrics["validity"]["reasons"]
    assert metrics["goodput"]["ratio"] is None
    json.dumps(metrics, allow_nan=False)
    assert all(value is None or value == 0 for value in flat(metrics).values())


def test_groups_are_computed_apart():
    book = Book()
    book.add(0, [(10, 1), (20, 1)], group="chat")
    book.add(0, [(100, 1)], group="document")
    metrics = compute(book, slo=parse_slo("ttft:50"))
    assert metrics["groups"]["chat"]["latency"]["ttft"]["p50"] == 10
    assert metrics["groups"]["document"]["latency"]["ttft"]["p50"] == 100
    assert metrics["groups"]["document"]["goodput"]["ratio"] == 0
    values = flat(metrics)
    assert values["chat/ttft_p50"] == 10
    assert values["document/goodput_ratio"] == 0
    assert "document/itl_p50" not in values
    assert values["goodput_ratio"] == 0.5


def test_load_is_what_was_delivered():
    book = Book()
    for i, late in enumerate((0, 1, 2, 3, 4)):
        book.add(i * 100 + late, [(i * 100 + 50, 1)], intended=i * 100)
    load = compute(book, requested_rate=11.0)["load"]
    assert load["requested_rate"] == 11.0
    assert load["offered_rate"] == pytest.approx(10.0)
    assert load["achieved_rate"] == pytest.approx(4 / 0.404)
    assert load["lag_p50_ms"] == 2
    assert load["peak_concurrency"] == 1


def test_waiting_for_a_slot_is_not_lag_of_the_client():
    book = Book()
    book.add(501, [(600, 1)], intended=0, released=500)
    metrics = compute(book, loop="hybrid")
    assert metrics["load"]["lag_p99_ms"] == 1
    assert metrics["latency"]["ttft"]["p50"] == 99
    assert metrics["latency"]["ttft_sched"]["p50"] == 600
    assert metrics["validity"]["valid"]


def test_peak_concurrency_is_half_open():
    assert peak_concurrency(np.array([0.0, 10.0]), np.array([10.0, 20.0])) == 1
    assert peak_concurrency(np.array([0.0, 9.0]), np.array([10.0, 20.0])) == 2
    assert peak_concurrency(np.array([np.nan]), np.array([5.0])) == 0


_EVENTS = st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 5)), min_size=1, max_size=8).map(
    lambda events: sorted(events, key=lambda event: event[0])
)


@given(st.lists(_EVENTS, min_size=1, max_size=5), st.integers(-(10**15), 10**9))
def test_shifting_all_stamps_changes_nothing(requests, shift):
    book = Book()
    for events in requests:
        book.add(0, events)
    before = compute(book)
    for record in book.records:
        for name in ("intended_ns", "released_ns", "sent_ns", "first_token_ns", "last_token_ns", "close_ns"):
            if getattr(record, name) is not None:
                setattr(record, name, getattr(record, name) + shift)
        for chunk in record.chunks:
            chunk.recv_ns += shift
    after = compute(book, start_ns=ORIGIN_NS + shift)
    before.pop("window")
    after.pop("window")
    assert after == before


@given(st.lists(st.integers(1, 4), min_size=2, max_size=12))
def test_rechunking_the_same_tokens_changes_icl_only(sizes):
    """Tokens every 10 ms; events of different sizes, each arriving with its last token."""

    def stream(parts):
        upto = np.cumsum(parts)
        book = Book()
        book.add(0, [(float(u) * 10, n) for u, n in zip(upto, parts, strict=True)])
        return compute(book)["latency"]

    # The first event is one token in both, so that the first stamp is the same.
    single, merged = stream([1] * (1 + sum(sizes))), stream([1, *sizes])
    for name in ("ttft", "tpot", "e2el", "itl"):
        assert merged[name]["mean"] == pytest.approx(single[name]["mean"])
        assert merged[name]["n"] == single[name]["n"]
    assert merged["icl"]["n"] == len(sizes)


def test_flat_has_every_name_and_bears_any_damage():
    names = {f"{latency}_{statistic}" for latency in LATENCIES for statistic in STATISTICS}
    for damaged in (
        {},
        {"latency": 3, "groups": [], "goodput": "x"},
        {"latency": {"ttft": {"p50": "9", "p99": True}}},
    ):
        values = flat(damaged)
        assert names <= values.keys()
        assert set(values.values()) == {None}
    assert flat({"latency": {"ttft": {"p50": float("nan")}}})["ttft_p50"] is None
