"""The lesson: the engine's steps one by one, with every block of the pool."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from reports.dashboard import lesson, lesson_words, ui
from reports.facts import Tile
from reports.figures import block_pool
from reports.figures import xray as figures
from reports.figures.block_pool import Block, Mark
from reports.figures.strips import STOP_TEXT
from reports.lifecycle import PREEMPTED


def show() -> None:
    """The whole lesson, opened at ``?lesson=STEP``."""
    play = lesson.lesson()
    st.caption(
        f"Six requests on a pool of {play.blocks} KV blocks of {play.block_size} tokens, with a budget of "
        f"{play.max_num_batched_tokens} tokens a step and at most {play.max_num_seqs} requests at a time. "
        "Recorded from this engine's scheduler on virtual time: no model, nothing invented."
    )
    here = ui.steps("lesson", 0, len(play.steps) - 1)
    step = play.steps[here]
    learnt = lesson_words.concepts(play)
    ui.jumps("lesson", range(len(play.steps)), here, [("Next new idea", sorted(learnt))])
    left, right = st.columns([5, 6], gap="medium")
    with left:
        st.subheader(f"What happens in step {here}")
        st.markdown("\n".join(f"- {text}" for text in lesson_words.sentences(play, here)))
        for title, text in learnt.get(here, []):
            st.info(f"**{title}.** {text}", icon=":material/school:")
    with right:
        order = [p.request for p in play.players]
        ui.tiles(_tiles(play, step))
        blocks = [Block(n, tuple(step.owners(n)), n in step.findable) for n in range(1, play.blocks + 1)]
        ui.chart(block_pool.pool(blocks, order), "lesson-pool", "The KV pool, block by block")
        st.caption(
            "Number of the block and who holds it; a hatched block is shared, a pale one is free but cached."
        )
    left, right = st.columns([6, 5], gap="medium")
    with left:
        st.subheader("Requests and their block tables")
        st.dataframe(
            pd.DataFrame(_table(play, here)),
            hide_index=True,
            placeholder="–",
            column_config={
                "request": st.column_config.TextColumn(width=70),
                "state": st.column_config.TextColumn(width=180),
                "computed": st.column_config.TextColumn(width=84),
            },
            alt="Requests and their block tables",
        )
    with right:
        st.subheader("The step's token budget")
        ui.chart(
            figures.budget(lesson.view(play, here), play.max_num_batched_tokens),
            "lesson-budget",
            "Tokens of this step by request",
        )
    st.subheader("All steps")
    ui.chart(block_pool.lives(_marks(play), order, here), "lesson-lives", "Every step of every request")


def _tiles(play: lesson.Lesson, step: lesson.LessonStep) -> list[Tile]:
    held = {block for table in step.tables.values() for block in table}
    tokens = sum(share.tokens for share in step.shares)
    stop = STOP_TEXT.get(step.stop, step.stop)
    return [
        Tile("Tokens", f"{tokens} of {play.max_num_batched_tokens}", f"{step.ms:g} ms of virtual time"),
        Tile("Blocks in use", f"{len(held)} of {play.blocks}", ""),
        Tile("Admission stopped", step.stop, stop),
    ]


def _table(play: lesson.Lesson, here: int) -> list[dict[str, object]]:
    step = play.steps[here]
    rows: list[dict[str, object]] = []
    finished = {e.request for s in play.steps[:here] for e in s.of("finished")}
    queue = [name for name, _, _ in step.waiting]
    for player in play.players:
        name = player.request
        share = next((s for s in step.shares if s.request == name), None)
        if share is not None:
            state = f"{share.phase}, {share.tokens} token{'s' if share.tokens > 1 else ''}"
            progress = f"{share.before + share.tokens} of {share.target}"
        elif name in queue:
            wait = step.waiting[queue.index(name)]
            state = f"{'preempted' if wait[2] else 'waiting'}, {queue.index(name) + 1}. in the queue"
            progress = f"0 of {wait[1]}"
        else:
            state = "finished" if name in finished else "not there yet"
            progress = None
        rows.append(
            {
                "request": name,
                "state": state,
                "computed": progress,
                "block table": " ".join(str(block) for block in step.tables.get(name, [])) or None,
            }
        )
    return rows


def _marks(play: lesson.Lesson) -> list[Mark]:
    found = []
    for index, step in enumerate(play.steps):
        found += [Mark(index, s.request, s.phase, s.tokens) for s in step.shares]
        found += [Mark(index, name, PREEMPTED if was else "waiting", 0) for name, _, was in step.waiting]
    return found
