"""One engine step looked into: who got how many tokens, who waited, and why no one else came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.lifecycle import DECODE, PREEMPTED, PREFILL, QUEUE, Span

_NOW = 1e-9


@dataclass(frozen=True)
class Share:
    """What one request got in the step."""

    request_id: str
    phase: str
    tokens: int


@dataclass(frozen=True)
class Waiting:
    """A request that was in the queue when the step was planned."""

    request_id: str
    waited_ms: float
    preempted: bool


@dataclass(frozen=True)
class StepView:
    """A step, its shares (prefill first, largest first) and its queue (longest wait first)."""

    step: dict[str, Any]
    shares: list[Share]
    waiting: list[Waiting]
    note: str = ""
    """Where the events and the step's own counters disagree."""


def step_view(steps: pd.DataFrame, spans: Sequence[Span], index: int) -> StepView:
    """Look into row ``index`` of ``steps``; ``spans`` as from ``lifecycle.engine_spans``.

    Prefill shares are noted by the engine chunk by chunk. A request decodes one token in every step between
    its last chunk and its end, so decode shares follow from the spans and are checked against the step's
    counter.
    """
    step = {str(key): value for key, value in steps.iloc[index].to_dict().items()}
    start = float(step["start_s"])
    prefills = [
        Share(s.request_id, PREFILL, s.tokens or 0)
        for s in spans
        if s.phase == PREFILL and s.step_id == step["step_id"]
    ]
    busy = {share.request_id for share in prefills}
    decodes = [
        Share(s.request_id, DECODE, 1)
        for s in spans
        if s.phase == DECODE
        and s.start_s <= start + _NOW
        and s.end_s > start + _NOW
        and s.request_id not in busy
    ]
    waiting = [
        Waiting(s.request_id, 1000 * (start - s.start_s), s.phase == PREEMPTED)
        for s in spans
        if s.phase in (QUEUE, PREEMPTED) and s.start_s <= start + _NOW and s.end_s > start + _NOW
    ]
    note = ""
    counted = _count(step["num_decode_reqs"])
    if counted is not None and counted != len(decodes):
        note = f"The engine counted {counted} decoding requests in this step, the events show {len(decodes)}."
    return StepView(
        step,
        sorted(prefills, key=lambda s: -s.tokens) + sorted(decodes, key=lambda s: s.request_id),
        sorted(waiting, key=lambda w: -w.waited_ms),
        note,
    )


def _count(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
