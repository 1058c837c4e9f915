"""Phases of a request and the X-ray of a step, against hand-made events and against the engine's own
counters.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.lifecycle import (
    DECODE,
    PREEMPTED,
    PREFILL,
    QUEUE,
    STREAMING,
    TO_FIRST,
    Span,
    client_spans,
    engine_spans,
)
from reports.run_view import Tables
from reports.xray import step_view
from tests.reports.mini_engine import play, traffic


def _events(*rows: tuple[float, str, Any, Any, Any]) -> pd.DataFrame:
    names = ["t_s", "kind", "step_id", "tokens", "value"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(request_id="r", core_id="r-0", detail=None)


def _steps(count: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step_id": range(count),
            "start_s": [float(i) for i in range(count)],
            "end_s": [i + 0.9 for i in range(count)],
        }
    )


def test_a_chunked_prefill_then_decode() -> None:
    events = _events(
        (0.5, "queued", None, 100, None),
        (1.0, "scheduled", 1, 60, 0),
        (2.0, "scheduled", 2, 40, 60),
        (2.9, "first_token", 2, None, None),
        (6.0, "finished", None, 4, None),
    )
    assert engine_spans(events, _steps(6)) == [
        Span("r", QUEUE, 0.5, 1.0),
        Span("r", PREFILL, 1.0, 1.9, 60, 1),
        Span("r", PREFILL, 2.0, 2.9, 40, 2),
        Span("r", DECODE, 2.9, 6.0),
    ]


def test_a_preempted_request_waits_and_computes_everything_again() -> None:
    events = _events(
        (0.0, "queued", None, 10, None),
        (0.0, "scheduled", 0, 10, 0),
        (0.9, "first_token", 0, None, None),
        (3.0, "preempted", 3, 12, None),
        (5.0, "resumed", 5, 0, None),
        (5.0, "scheduled", 5, 8, 0),
        (6.0, "scheduled", 6, 5, 8),
        (8.5, "finished", None, 6, None),
    )
    assert engine_spans(events, _steps(9))[2:] == [
        Span("r", DECODE, 0.9, 3.0),
        Span("r", PREEMPTED, 3.0, 5.0),
        Span("r", PREFILL, 5.0, 5.9, 8, 5),
        Span("r", PREFILL, 6.0, 6.9, 5, 6),
        Span("r", DECODE, 6.9, 8.5),
    ]


def test_a_request_cut_off_by_the_end_of_the_trace_still_shows() -> None:
    waiting = engine_spans(_events((1.0, "queued", None, 5, None)), _steps(4))
    assert waiting == [Span("r", QUEUE, 1.0, 3.9)]


def test_an_abort_in_the_queue_ends_the_wait() -> None:
    events = _events((1.0, "queued", None, 5, None), (2.5, "finished", None, 0, None))
    assert engine_spans(events, _steps(4)) == [Span("r", QUEUE, 1.0, 2.5)]


def test_client_stamps_alone_give_two_phases_and_failures_one() -> None:
    frame = pd.DataFrame(
        {
            "request_id": ["a", "b", "c"],
            "sent_s": [0.0, 1.0, None],
            "first_s": [0.4, None, None],
            "last_s": [2.0, None, None],
            "close_s": [2.1, 1.5, None],
            "output_tokens": [7, None, None],
        }
    )
    assert client_spans(frame) == [
        Span("a", TO_FIRST, 0.0, 0.4),
        Span("a", STREAMING, 0.4, 2.0, 7),
        Span("b", TO_FIRST, 1.0, 1.5),
    ]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    chunk=st.sampled_from([16, 64, 256, 1024]),
    kv_blocks=st.sampled_from([130, 200, 400]),
    count=st.integers(1, 14),
)
def test_every_step_of_a_trace_is_explained_by_its_events(
    seed: int, chunk: int, kv_blocks: int, count: int
) -> None:
    """Shares add up to the step's own token counters and the queue to its own length, in every step."""
    raw_steps, raw_events = play(traffic(count, seed), chunk, seed, kv_blocks)
    steps = pd.DataFrame(raw_steps)
    origin = steps["t_start"].iloc[0]
    steps["start_s"], steps["end_s"] = (steps["t_start"] - origin) / 1e9, (steps["t_end"] - origin) / 1e9
    events = pd.DataFrame(raw_events).sort_values("t_ns", kind="stable")
    events["t_s"] = (events["t_ns"] - origin) / 1e9
    spans = engine_spans(events, steps)
    for index in range(len(steps)):
        view = step_view(steps, spans, index)
        assert view.note == ""
        assert sum(s.tokens for s in view.shares if s.phase == PREFILL) == view.step["prefill_tokens"]
        assert sum(s.tokens for s in view.shares if s.phase == DECODE) == view.step["decode_tokens"]


def test_a_disagreement_between_events_and_counters_is_told(tables_a: Tables) -> None:
    assert tables_a.steps is not None
    spans, source = tables_a.spans()
    assert source == "engine events"
    steps = tables_a.steps.assign(num_decode_reqs=99)
    assert "counted 99 decoding requests" in step_view(steps, spans, 5).note


def test_the_queue_lists_who_waited_longest_first(tables_a: Tables) -> None:
    assert tables_a.steps is not None
    spans, _ = tables_a.spans()
    busiest = int(tables_a.steps["num_waiting"].astype(int).idxmax())
    view = step_view(tables_a.steps, spans, busiest)
    waits = [w.waited_ms for w in view.waiting]
    assert len(waits) >= view.step["num_waiting"] >= 2
    assert waits == sorted(waits, reverse=True)
    assert all(w == pytest.approx(w) and w >= 0 for w in waits)
