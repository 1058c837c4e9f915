"""The lesson is what the scheduler does, and blocks told from a trace are those of the block tables."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from engine.trace.recorder import ListRecorder
from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from reports.dashboard.lesson import lesson, view
from reports.dashboard.lesson_words import CONCEPTS, concepts, sentences
from reports.figures import block_pool
from reports.figures.block_pool import Block
from reports.held_blocks import held_blocks
from tests.reports import lesson_recorder

PLAY = lesson()


def test_the_shipped_record_is_what_the_scheduler_does_today():
    assert lesson_recorder.TARGET.read_text(encoding="utf-8") == lesson_recorder.text(), (
        "the scheduler changed: look at the difference, then: python -m tests.reports.lesson_recorder"
    )


def test_every_request_gets_its_tokens_and_nobody_more_than_the_budget():
    got = {p.request: 0 for p in PLAY.players}
    for step in PLAY.steps:
        assert 0 < sum(s.tokens for s in step.shares) <= PLAY.max_num_batched_tokens
        assert len(step.running) <= PLAY.max_num_seqs
        for share in step.shares:
            got[share.request] += share.before + share.tokens == share.target
    assert got == {p.request: p.output for p in PLAY.players}


def test_every_idea_is_taught_once_with_words_for_it():
    taught = [title for found in concepts(PLAY).values() for title, _ in found]
    assert sorted(taught) == sorted(title for _, title, _ in CONCEPTS)
    assert all(sentences(PLAY, index) for index in range(len(PLAY.steps)))


def test_words_of_the_steps_that_matter():
    said = {index: " ".join(sentences(PLAY, index)) for index in range(len(PLAY.steps))}
    assert "A computes 16 tokens (16 of 24 are done then)" in said[0]
    assert "B waits (10 tokens to compute): the step's token budget was spent." in said[0]
    assert "C finds 20 tokens of its prompt in the prefix cache: 5 blocks, shared with A." in said[3]
    preempted = next(i for i, s in enumerate(PLAY.steps) if s.of("preempted"))
    assert "E, gives up all of its blocks: 17 computed tokens are lost" in said[preempted]
    assert "C needs a new block and none is free" in said[preempted]
    resumed = next(i for i, s in enumerate(PLAY.steps) if s.of("resumed"))
    assert "12 of its tokens are still in the cache, 6 are computed again" in said[resumed]
    last_hit = next(i for i, s in enumerate(PLAY.steps) if i > 5 and s.of("prefix_hit"))
    assert "5 blocks, taken back from the free list" in said[last_hit]


@pytest.mark.parametrize("index", range(len(PLAY.steps)))
def test_blocks_add_up_to_the_pool(index):
    step, counters = PLAY.steps[index], view(PLAY, index).step
    assert counters["kv_used"] + counters["kv_cached"] + counters["kv_free"] == PLAY.blocks
    for share in step.shares:
        assert len(step.tables[share.request]) == -(-(share.before + share.tokens) // PLAY.block_size)
    blocks = [Block(n, tuple(step.owners(n)), n in step.findable) for n in range(1, PLAY.blocks + 1)]
    figure = block_pool.pool(blocks, [p.request for p in PLAY.players])
    assert sum(len(trace.x) for trace in figure.data) == PLAY.blocks


@cache
def _trace() -> tuple[pd.DataFrame, pd.DataFrame, list[dict[str, int]]]:
    """Steps and events of the lesson as ``RunData`` gives them, and the true lengths of the block tables."""
    recorder = ListRecorder()
    played = lesson_recorder.play(recorder)
    found = [{name: len(table) for name, table in step["tables"].items()} for step in played["steps"]]
    steps = pd.DataFrame(recorder.steps, columns=[name for name, _ in STEP_COLUMNS])
    steps["start_s"], steps["end_s"] = steps["t_start"] / 1e9, steps["t_end"] / 1e9
    steps["schedule_ms"] = (steps["t_schedule"] - steps["t_start"]) / 1e6
    events = pd.DataFrame(recorder.events, columns=[name for name, _ in EVENT_COLUMNS])
    events["t_s"] = events["t_ns"] / 1e9
    return steps, events, found


def test_blocks_from_the_trace_are_those_of_the_block_tables():
    steps, events, true = _trace()
    for index, tables in enumerate(true):
        got = held_blocks(events, steps, index, PLAY.block_size)
        assert {h.request: h.blocks for h in got.held} == tables, index
        assert got.unexplained == 0
        used = len({b for table in PLAY.steps[index].tables.values() for b in table})
        assert got.shared == sum(tables.values()) - used


def test_what_no_request_accounts_for_is_said():
    steps, events, _ = _trace()
    more = steps.copy()
    more["kv_used"] += 2
    assert held_blocks(events, more, 1, PLAY.block_size).unexplained == 2


def test_a_large_pool_is_drawn_in_cells_that_add_up():
    held = [block_pool.Held("a", 5000), block_pool.Held("<b>x", 3000)]
    figure = block_pool.by_request(held, 10, 990, 1000)
    cells = [z for row in figure.data[0].z for z in row if z is not None]
    assert len(cells) == 2000
    assert cells.count(0) == 200
    assert "<b>x" not in str(figure.data[0].text)
    assert "a cell stands for 5 blocks" in figure.layout.xaxis.title.text
