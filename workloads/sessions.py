"""Conversations of several turns: the shape is drawn beforehand, what the server answers is put in while
it runs."""

from __future__ import annotations

import numpy as np

from workloads.lengths import sample
from workloads.request import WorkloadRequest
from workloads.sources import SessionsSource


def sessions(
    source: SessionsSource,
    count: int,
    shape_rng: np.random.Generator,
    content: list[int],
    id_range: tuple[int, int],
) -> list[WorkloadRequest]:
    """All turns of ``count`` sessions, a session's turns one after another; later turns hold what they add.

    Offsets are given later: only an opening turn has a place in the schedule.
    """
    turns_rng, length_rng, think_rng = shape_rng.spawn(3)
    turns = sample(source.turns, count, turns_rng)
    total = int(turns.sum())
    inputs = sample(source.input_tokens, total, length_rng)
    outputs = sample(source.output_tokens, total, length_rng)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(turns)[:-1]))
    inputs[starts] = sample(source.first_input_tokens, count, length_rng)
    if source.think_kind == "exponential":
        think = think_rng.exponential(source.think_s, size=total) if source.think_s else np.zeros(total)
    else:
        think = np.full(total, source.think_s)
    low, high = id_range
    body_rng, reply_rng, prefix_rng = np.random.default_rng(content).spawn(3)
    bodies = np.split(
        body_rng.integers(low, high, size=int(inputs.sum()), dtype=np.int32), np.cumsum(inputs)[:-1]
    )
    replies = np.split(
        reply_rng.integers(low, high, size=int(outputs.sum()), dtype=np.int32), np.cumsum(outputs)[:-1]
    )
    prefix = prefix_rng.integers(low, high, size=source.prefix_tokens, dtype=np.int32)
    requests = []
    for session in range(count):
        for turn in range(int(turns[session])):
            i = int(starts[session]) + turn
            if turn == 0:
                bodies[i][: source.prefix_tokens] = prefix
            requests.append(
                WorkloadRequest(
                    index=i,
                    offset_ns=None,
                    group="opening" if turn == 0 else "later-turn",
                    max_tokens=int(outputs[i]),
                    prompt_token_ids=bodies[i],
                    num_prompt_tokens=int(inputs[i]) if turn == 0 else None,
                    session=session,
                    turn=turn,
                    think_ns=round(float(think[i]) * 1e9) if turn else 0,
                    scripted_reply=replies[i],
                )
            )
    return requests
