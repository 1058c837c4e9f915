"""SLO grammar, and the truth table of goodput: what the answer was like × which objective."""

from __future__ import annotations

import pytest

from engine.errors import InvalidInputError
from tests.workbench.tables import ORIGIN_NS, Book
from workbench.metrics.compute import compute_metrics
from workbench.slo import KEYS, Slo, parse_slo

# Each answer: sent at 100, planned for 90.
ANSWERS = {
    "fast": {"events": [(150, 1), (160, 1), (170, 1)]},
    "slow": {"events": [(400, 1), (700, 1), (1000, 1)]},
    "one token": {"events": [(150, 1)]},
    "one event": {"events": [(150, 8)]},
    "empty": {"events": [], "status": "failed", "error_class": "empty"},
    "failed late": {"events": [(150, 1), (160, 1)], "status": "failed", "error_class": "truncated"},
    "timed out": {"events": [], "status": "failed", "error_class": "timeout_first_token"},
    "cancelled": {"events": [(150, 1)], "status": "cancelled", "error_class": "cancelled"},
    "never sent": {"events": [], "sent": None, "status": "cancelled", "error_class": "cancelled"},
}
BOUNDS = {"ttft": 60, "ttft_sched": 70, "itl": 20, "tpot": 20, "stall": 20, "e2el": 100, "e2el_sched": 110}
GOOD = {"fast", "one token", "one event"}
VACUOUS = {"itl", "tpot", "stall"}


def judge(answers, slo: str):
    book = Book()
    for answer in answers:
        fields = {"sent": 100, **ANSWERS[answer]}
        book.add(intended=90, close=2000, **fields)
    requests, chunks = book.tables()
    return compute_metrics(
        requests, chunks, start_ns=ORIGIN_NS, loop="open", requested_rate=None, slo=parse_slo(slo)
    )["goodput"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_truth_table(answer, key):
    verdict = judge([answer], f"{key}:{BOUNDS[key]}")
    assert verdict["offered"] == 1
    assert verdict["good"] == (answer in GOOD)
    assert verdict["missed_by"] == {key: int(answer == "slow")}
    assert verdict["not_ok"] == int(answer not in GOOD | {"slow"})
    assert verdict["vacuous"] == int(answer in ("one token", "one event") and key in VACUOUS)


def test_everything_offered_is_the_denominator():
    verdict = judge(ANSWERS, "ttft:60 itl:20")
    assert (verdict["offered"], verdict["good"]) == (9, 3)
    assert verdict["ratio"] == 3 / 9
    assert verdict["good_s"] == 3 / 2.0  # the window ends at the last close, 2 s
    assert verdict["missed_by"] == {"ttft": 1, "itl": 1}


@pytest.mark.parametrize(("bound", "good"), [(50, 1), (49.999, 0)])
def test_a_bound_is_met_when_equal(bound, good):
    assert judge(["fast"], f"ttft:{bound}")["good"] == good


def test_itl_bounds_the_95th_percentile_of_a_requests_own_gaps():
    # 19 gaps of 10 ms and one of 500 ms: nearest rank 19 of 20 is 10. With 18 and two, it is 500.
    def verdict(stalls):
        gaps = [500 if i < stalls else 10 for i in range(20)]
        events, at = [(100.0, 1)], 100.0
        for gap in gaps:
            at += gap
            events.append((at, 1))
        book = Book()
        book.add(0, events)
        requests, chunks = book.tables()
        return compute_metrics(
            requests, chunks, start_ns=ORIGIN_NS, loop="open", requested_rate=None, slo=parse_slo("itl:20")
        )["goodput"]["good"]

    assert (verdict(1), verdict(2)) == (1, 0)


def test_itl_weighs_gaps_by_tokens():
    # A gap of 500 ms that brought 100 tokens is 5 ms for each of them.
    book = Book()
    book.add(0, [(10, 1), (510, 100)])
    requests, chunks = book.tables()
    metrics = compute_metrics(
        requests, chunks, start_ns=ORIGIN_NS, loop="open", requested_rate=None, slo=parse_slo("itl:5")
    )
    assert metrics["goodput"]["good"] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft:200 itl:50 e2el:5000", (("ttft", 200), ("itl", 50), ("e2el", 5000))),
        ("ttft:200,tpot:0.5", (("ttft", 200), ("tpot", 0.5))),
        (" stall:1e3 ", (("stall", 1000),)),
    ],
)
def test_grammar(text, expected):
    slo = parse_slo(text)
    assert slo == Slo(expected)
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft:",
        "ttft:x",
        "ttft:-1",
        "ttft:0",
        "ttft:nan",
        "ttft:inf",
        "icl:5",
        "TTFT:5",
        "ttft:1 ttft:2",
        ":5",
    ],
)
def test_malformed(text):
    with pytest.raises(InvalidInputError) as caught:
        parse_slo(text)
    assert caught.value.field == "goodput"
    assert "\n" not in str(caught.value)
