"""One request's life inside the engine as consecutive segments, from its events and the steps' stamps.

A request that is not finished is in exactly one state at any moment: waiting to be taken, in the queue,
computing its prompt, between two chunks, decoding, preempted, or recomputing what a preemption lost. The
segments of a request follow each other without a hole, so their sum is exact by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

QUEUE = "queue"
PREFILL = "prefill"
CHUNK_GAP = "chunk_gap"
DECODE = "decode"
PREEMPTED = "preempted"
RECOMPUTE = "recompute"


class Segment(NamedTuple):
    """State of a request in [start, end), monotonic ns. ``step_id`` and ``tokens`` only where it computes a
    chunk.
    """

    state: str
    start_ns: int
    end_ns: int
    step_id: int | None = None
    tokens: int | None = None


class StepTimes:
    """Steps in order of time, made disjoint: with asynchronous scheduling a step is planned while the one
    before it runs, and it runs from that one's end.

    Args:
        step_id, t_start, t_end: int64 columns of ``steps.parquet``.
    """

    def __init__(
        self, step_id: NDArray[np.int64], t_start: NDArray[np.int64], t_end: NDArray[np.int64]
    ) -> None:
        order = np.argsort(t_end, kind="stable")
        self.step_id, self.end = step_id[order], t_end[order]
        self.planned = t_start[order]
        before = np.concatenate([self.planned[:1], self.end[:-1]]) if len(order) else self.planned
        self.start = np.maximum(self.planned, before)
        self._place = {int(step): i for i, step in enumerate(self.step_id)}

    def __len__(self) -> int:
        return len(self.step_id)

    def index(self, step_id: int) -> int | None:
        """Place of a step in the arrays; None: the trace has no row for it."""
        return self._place.get(step_id)

    def span(self, step_id: int) -> tuple[int, int] | None:
        """(start, end) of a step."""
        i = self._place.get(step_id)
        return None if i is None else (int(self.start[i]), int(self.end[i]))


@dataclass(frozen=True, slots=True)
class EngineLife:
    """What the engine's events tell about one sequence.

    ``submitted_ns`` is the front end's hand-over (the core's own stamp where the front end left none),
    ``first_token_ns`` and ``finished_ns`` are None when they never happened.
    """

    core_id: str
    submitted_ns: int
    taken_ns: int
    """When the core had it in its queue."""
    first_token_ns: int | None
    finished_ns: int | None
    finish_reason: str | None
    segments: tuple[Segment, ...]
    num_preemptions: int
    prompt_tokens: int
    hit_tokens: int
    lost_tokens: int
    """Computed tokens that preemptions took away."""
    recomputed_tokens: int
    """Tokens computed again after them."""
    complete: bool
    """False: a step or the beginning of its life is missing from the trace."""

    @property
    def end_ns(self) -> int:
        return self.segments[-1].end_ns if self.segments else self.submitted_ns


def engine_life(events: Sequence[Mapping[str, Any]], steps: StepTimes) -> EngineLife | None:
    """Fold the events of one ``core_id``, in the order they were recorded.

    The engine records each chunk of a prefill or recompute, and no decoded token: a request decodes from its
    last chunk until it ends or is preempted. After a preemption it has to compute all its tokens but the
    newest again, that is one more than the preemption lost.

    Returns:
        None when there is no event.
    """
    if not events:
        return None
    fold = _Fold(events[0], steps)
    for event in events:
        fold.take(event)
    return fold.result()


class _Fold:
    def __init__(self, first: Mapping[str, Any], steps: StepTimes) -> None:
        self._steps = steps
        self._core_id = str(first["core_id"])
        queued = first["kind"] == "queued"
        self._complete = queued
        handed_over = first["value"] if queued else None
        self._taken = int(first["t_ns"])
        # Clocks are the same, but a stamp taken on another core may be a hair later.
        self._submitted = min(int(first["t_ns"]), int(handed_over or first["t_ns"]))
        self._at = self._submitted
        """Everything before is told."""
        self._state = QUEUE
        self._segments: list[Segment] = []
        self._target = int(first["tokens"] or 0) if queued else 0
        self._prompt = self._target
        self._redo = 0
        """Tokens that were computed once: up to here a chunk computes them again."""
        self._first: int | None = None
        self._finished: int | None = None
        self._reason: str | None = None
        self._preemptions = self._hit = self._lost = self._recomputed = 0

    def take(self, event: Mapping[str, Any]) -> None:
        kind, now = event["kind"], int(event["t_ns"])
        if kind == "scheduled":
            self._chunk(event)
        elif kind == "prefix_hit":
            self._hit = int(event["tokens"] or 0)
        elif kind == "resumed":
            self._resume(event)
        elif kind == "first_token":
            self._first = now
        elif kind == "preempted":
            self._preempt(int(event["tokens"] or 0), now)
        elif kind == "finished":
            self._close(now)
            self._finished, self._reason = now, event["detail"]

    def result(self) -> EngineLife:
        return EngineLife(
            self._core_id, self._submitted, self._taken, self._first, self._finished, self._reason,
            tuple(self._segments), self._preemptions, self._prompt, self._hit, self._lost, self._recomputed,
            self._complete and self._finished is not None,
        )  # fmt: skip

    def _close(self, until: int, step_id: int | None = None, tokens: int | None = None) -> None:
        """End the present state at ``until`` (never before it began)."""
        if until > self._at:
            self._segments.append(Segment(self._state, self._at, until, step_id, tokens))
            self._at = until

    def _chunk(self, event: Mapping[str, Any]) -> None:
        tokens, mark, step_id = int(event["tokens"] or 0), int(event["value"] or 0), int(event["step_id"])
        span = self._steps.span(step_id)
        if span is None:
            self._complete = False
            span = (int(event["t_ns"]), int(event["t_ns"]))
        again = max(0, min(mark + tokens, self._redo) - mark)
        self._recomputed += again
        self._close(span[0])
        self._state = RECOMPUTE if again else PREFILL
        self._close(span[1], step_id, tokens)
        if mark + tokens >= self._target:
            self._state = DECODE
        else:
            self._state = PREEMPTED if mark + tokens < self._redo else CHUNK_GAP

    def _resume(self, event: Mapping[str, Any]) -> None:
        span = self._steps.span(int(event["step_id"]))
        if span is not None and int(event["tokens"] or 0) + 1 >= self._target and self._first is not None:
            # It found everything but its newest token: a decode like any other, with no chunk of its own.
            self._close(span[0])
            self._state = DECODE

    def _preempt(self, lost: int, now: int) -> None:
        self._close(now)
        self._redo = max(self._redo, lost)
        if self._state == DECODE:
            self._target = max(self._target, lost + 1)
        self._state = PREEMPTED
        self._preemptions += 1
        self._lost += lost
