"""Lives read a few at a time: the same spans as all of them together, and nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from reports.lifecycle import GAP, PREFILL, Span
from reports.run_data import RunData
from reports.run_view import Tables
from workbench.runstore import RunStore


def by_request(spans: list[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.request_id, []).append(span)
    return found


def test_a_window_holds_whole_lives_of_those_alive_in_it(tables_a: Tables) -> None:
    every = by_request(tables_a.lives.all())
    window = (1.0, 1.6)
    inside = {
        request
        for request, spans in every.items()
        if min(s.start_s for s in spans) <= window[1] and max(s.end_s for s in spans) >= window[0]
    }
    found = tables_a.lives.window(*window)
    assert by_request(found.spans) == {request: every[request] for request in inside}
    assert found.alive == len(inside) > 3
    few = tables_a.lives.window(*window, limit=2)
    assert few.alive == len(inside)
    first = sorted(inside, key=lambda r: min(s.start_s for s in every[r]))[:2]
    assert by_request(few.spans) == {request: every[request] for request in first}


def test_one_request_and_one_moment(tables_a: Tables) -> None:
    every = by_request(tables_a.lives.all())
    request = sorted(every)[7]
    assert tables_a.lives.of(request) == every[request]
    assert tables_a.lives.of("nobody") == []
    at = every[request][0].start_s + 1e-6
    alive = by_request(tables_a.lives.at(at))
    assert request in alive
    assert all(min(s.start_s for s in spans) <= at <= max(s.end_s for s in spans) for spans in alive.values())
    events = tables_a.lives.events_at(at)
    assert events is not None
    assert set(events["request_id"]) == set(alive)


@pytest.mark.parametrize(
    ("run_id", "source", "traced"),
    [("run-a", "engine events", True), ("run-no-traces", "client stamps", False)],
)
def test_where_the_spans_come_from(store_dir, run_id: str, source: str, traced: bool) -> None:
    run = RunStore(store_dir).open(run_id)
    tables = Tables.read(RunData.of(run.path, run.manifest))
    assert (tables.lives.source, tables.traced) == (source, traced)
    alive = tables.alive()
    assert alive.alive == len(tables.requests)
    assert len(by_request(alive.spans)) == alive.alive


def test_a_gap_is_a_step_that_passed_the_request_over(tables_a: Tables) -> None:
    spans = tables_a.lives.all()
    assert tables_a.steps is not None
    for request, mine in by_request(spans).items():
        chunks = [s for s in mine if s.phase == PREFILL]
        skipped = sum(
            b.step_id > a.step_id + 1
            for a, b in pairwise(chunks)
            if not any(s.phase not in (PREFILL, GAP) and a.end_s <= s.start_s < b.start_s for s in mine)
        )
        assert Counter(s.phase for s in mine)[GAP] == skipped, request
