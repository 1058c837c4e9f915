"""The rules by which a run declares itself invalid."""

from __future__ import annotations

import pytest

from workbench.metrics.validity import validity
from workbench.targets.base import echo_mismatches

COUNTS = {"offered": 10, "ok": 10, "failed": 0, "cancelled": 0, "errors": {}}
LOAD = {"loop": "open", "lag_p99_ms": 1.0, "offered_rate": 10.0, "achieved_rate": 10.0}


def verdict(ttft=100.0, further=(), counts=None, **load):
    return validity({**COUNTS, **(counts or {})}, {**LOAD, **load}, ttft, further)


def test_a_clean_run():
    assert verdict() == {"valid": True, "reasons": []}


@pytest.mark.parametrize(
    ("lag", "ttft", "valid"),
    [
        (10.0, 100.0, True),
        (10.1, 100.0, False),
        (50.0, 1000.0, True),
        (50.1, 1000.0, False),
        (9.0, None, True),
        (None, 1.0, True),
    ],
)
def test_lag_bound_is_the_larger_of_ten_ms_and_five_percent_of_ttft(lag, ttft, valid):
    found = verdict(ttft, lag_p99_ms=lag)
    assert found["valid"] is valid
    assert valid or "dispatch lag p99" in found["reasons"][0]


@pytest.mark.parametrize(
    ("loop", "achieved", "valid"),
    [
        ("open", 9.8, True),
        ("open", 9.79, False),
        ("hybrid", 5.0, True),
        ("closed", 5.0, True),
        ("open", None, True),
    ],
)
def test_achieved_rate(loop, achieved, valid):
    assert verdict(loop=loop, achieved_rate=achieved)["valid"] is valid


def test_failures_name_their_classes():
    found = verdict(counts={"ok": 7, "failed": 3, "errors": {"http_5xx": 1, "connect": 2}})
    assert found["reasons"] == ["3 of 10 requests failed (connect: 2, http_5xx: 1)"]


def test_nothing_served_and_reasons_from_outside():
    found = verdict(counts={"ok": 0}, further=["interrupted before its end"])
    assert found["reasons"] == ["interrupted before its end", "no request succeeded"]


@pytest.mark.parametrize(
    ("requested", "echo", "reasons"),
    [
        ({"max_num_seqs": 4}, {"max_num_seqs": 4, "x": 1}, 0),
        ({"max_num_seqs": 4}, {"max_num_seqs": 8}, 1),
        ({"max_num_seqs": 4}, {}, 1),
        ({"dtype": "auto", "tokenizer": None}, {"dtype": "float32", "tokenizer": "x"}, 0),
        ({"max_num_seqs": 4}, None, 1),
        ({}, None, 0),
    ],
)
def test_echo_must_be_what_was_asked_for(requested, echo, reasons):
    found = echo_mismatches(requested, echo)
    assert len(found) == reasons
    assert all("config" in reason for reason in found)
