"""One schedule, several workers: who sends what. The requests themselves do not change by a byte."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from workbench.load.bodies import PreparedRequest
from workbench.load.runner import LoadPlan

RATE_PER_WORKER = 2_000.0
"""Requests per second above which one more process sends, counted over the busiest second."""
STREAMS_PER_WORKER = 1_000
"""The same for requests that are in flight together (closed and hybrid loops, bursts)."""


def worker_count(plan: LoadPlan, asked: int | None) -> int:
    """Processes for ``plan``: as asked, else by its rate and its streams, at most one a core.

    Never more than there are slots of a concurrency limit, for each worker keeps a share of them.
    """
    most = min(len(plan.requests), plan.max_concurrency or len(plan.requests)) or 1
    if asked is not None:
        return min(asked, most)
    streams = plan.max_concurrency or (len(plan.requests) if _is_burst(plan.requests) else 0)
    needed = max(busiest_second(plan.requests) / RATE_PER_WORKER, streams / STREAMS_PER_WORKER)
    if needed <= 1.0:
        return 1
    return min(math.ceil(needed), most, len(os.sched_getaffinity(0)))


def busiest_second(requests: Sequence[PreparedRequest]) -> int:
    """Most requests that the schedule holds in one whole second after its start; bursts are not rates."""
    counts = Counter(r.offset_ns // 1_000_000_000 for r in requests if r.offset_ns)
    return max(counts.values(), default=0)


def deal(plan: LoadPlan, workers: int) -> list[LoadPlan]:
    """Shares of ``plan`` in turn, a session's turns together, slots split as evenly as can be.

    Every request is in exactly one share, with its own index, offset and bytes.
    """
    if workers == 1:
        return [plan]
    hands: list[list[PreparedRequest]] = [[] for _ in range(workers)]
    turn = 0
    home: dict[int, int] = {}
    for request in plan.requests:
        session = None if request.turn is None else request.turn.session
        if session is not None and session in home:
            hands[home[session]].append(request)
            continue
        hands[turn % workers].append(request)
        if session is not None:
            home[session] = turn % workers
        turn += 1
    limit = plan.max_concurrency
    return [
        replace(
            plan,
            requests=hand,
            worker=number,
            max_concurrency=None if limit is None else limit // workers + (number < limit % workers),
        )
        for number, hand in enumerate(hands)
    ]


def _is_burst(requests: Sequence[PreparedRequest]) -> bool:
    return all(r.offset_ns == 0 for r in requests if r.turn is None or r.turn.number == 0)
