"""A request's life from the engine's events: waiting, prefill chunks, decode, preempted; or from client
stamps alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

QUEUE, PREFILL, DECODE, PREEMPTED = "waiting", "prefill", "decode", "preempted"
GAP = "between chunks"
TO_FIRST, STREAMING = "to first token", "streaming"


@dataclass(frozen=True)
class Span:
    """One phase of one request on the run's time axis (seconds)."""

    request_id: str
    phase: str
    start_s: float
    end_s: float
    tokens: int | None = None
    step_id: int | None = None


@dataclass
class _State:
    target: int = 0
    """Tokens to compute before the next one can be sampled: the prompt, after a preemption all tokens."""
    waiting_since: float | None = None
    was_preempted: bool = False
    decode_since: float | None = None
    gap_since: float | None = None
    """End of a chunk that did not complete the prompt."""
    gap_step: int | None = None


def engine_spans(
    events: pd.DataFrame, steps: pd.DataFrame | None, until_s: float | None = None
) -> list[Span]:
    """Spans of all requests in ``events`` (time order). A prefill chunk lasts as long as its step does; what
    has not ended lasts until ``until_s`` (default: the last stamp there is).

    The engine notes every chunk of a prefill, but not every decoded token: a request decodes from the end of
    its last chunk until it finishes or is preempted.
    """
    times: dict[int, tuple[float, float]] = {}
    if steps is not None and len(steps):
        times = dict(
            zip(steps["step_id"].tolist(), zip(steps["start_s"], steps["end_s"], strict=True), strict=True)
        )
    states: dict[str, _State] = {}
    owner: dict[str, str] = {}
    found: list[Span] = []
    last = max([float(events["t_s"].max()) if len(events) else 0.0, *(end for _, end in times.values())])
    last = last if until_s is None else max(last, until_s)
    for row in events.to_dict("records"):
        core = str(row["core_id"])
        owner[core] = str(row["request_id"])
        found += _advance(states.setdefault(core, _State()), row, times)
    for core, state in states.items():
        if state.waiting_since is not None:
            found.append(Span(owner[core], _waiting(state), state.waiting_since, last))
        found += _close_decode(state, owner[core], last)
    return found


def _waiting(state: _State) -> str:
    return PREEMPTED if state.was_preempted else QUEUE


def _advance(
    state: _State, row: Mapping[Hashable, Any], times: dict[int, tuple[float, float]]
) -> Iterator[Span]:
    kind, now, request = row["kind"], float(row["t_s"]), str(row["request_id"])
    tokens, mark, step = (_int(row[name]) for name in ("tokens", "value", "step_id"))
    if kind == "queued":
        state.target, state.waiting_since = tokens or 0, now
    elif kind == "scheduled":
        start, end = times.get(step, (now, now)) if step is not None else (now, now)
        if state.waiting_since is not None:
            yield Span(request, _waiting(state), state.waiting_since, max(start, state.waiting_since))
            state.waiting_since, state.was_preempted = None, False
        if step is None or state.gap_step is None or step > state.gap_step + 1:
            # A step in between has passed the request over.
            yield from _close_gap(state, request, start)
        yield Span(request, PREFILL, start, end, tokens, step)
        complete = (mark or 0) + (tokens or 0) >= state.target
        state.decode_since = end if complete else state.decode_since
        state.gap_since, state.gap_step = (None, None) if complete else (end, step)
    elif kind == "preempted":
        if state.decode_since is not None:
            # It had computed all but its newest token: everything comes again before it can go on.
            state.target = max(state.target, (tokens or 0) + 1)
        yield from _close_decode(state, request, now)
        yield from _close_gap(state, request, now)
        state.waiting_since, state.was_preempted = now, True
    elif kind == "finished":
        if state.waiting_since is not None:
            yield Span(request, _waiting(state), state.waiting_since, max(now, state.waiting_since))
        yield from _close_decode(state, request, now)
        yield from _close_gap(state, request, now)
        state.waiting_since = None


def _close_gap(state: _State, request: str, until: float) -> Iterator[Span]:
    if state.gap_since is not None and until > state.gap_since:
        yield Span(request, GAP, state.gap_since, until)
    state.gap_since = None


def _close_decode(state: _State, request: str, until: float) -> Iterator[Span]:
    if state.decode_since is not None and until > state.decode_since:
        yield Span(request, DECODE, state.decode_since, until)
    state.decode_since = None


def client_spans(requests: pd.DataFrame) -> list[Span]:
    """What the client alone can tell: sent to first token, first to last token."""
    found = []
    for row in requests.to_dict("records"):
        sent, first, last, close = (_float(row[f"{name}_s"]) for name in ("sent", "first", "last", "close"))
        if sent is None:
            continue
        until = first if first is not None else close
        if until is not None:
            found.append(Span(str(row["request_id"]), TO_FIRST, sent, until))
        if first is not None and last is not None:
            found.append(Span(str(row["request_id"]), STREAMING, first, last, _int(row["output_tokens"])))
    return found


def _int(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)


def _float(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
