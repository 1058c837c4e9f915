"""Where each request's time went, exactly: client lag, front end, queue, prefill, gaps between chunks,
decode, preempted and recompute, output.

The parts are whole nanoseconds of consecutive segments cut at the client's own stamps, so that they sum to
``e2el_sched`` (and, without the client's lag, to ``e2el``) to the nanosecond, whatever happened to the
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.timeline.segments import (
    CHUNK_GAP,
    DECODE,
    PREEMPTED,
    PREFILL,
    QUEUE,
    RECOMPUTE,
    EngineLife,
    StepTimes,
    engine_life,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from workbench.runstore import Run

FRONT_END = "front_end"
OUTPUT = "output"
ENGINE_STATES = (QUEUE, PREFILL, CHUNK_GAP, DECODE, PREEMPTED, RECOMPUTE)
PARTS = (FRONT_END, *ENGINE_STATES, OUTPUT)
"""Parts of ``e2el``, in the order in which they are met; ``client_lag`` comes before them."""


@dataclass(frozen=True, slots=True)
class RequestSplit:
    """One request. ``parts`` sums to ``end_ns - sent_ns``, ``first_parts`` to ``first_ns - sent_ns``; both
    are None where the engine's trace can't tell.
    """

    request_id: str
    phase: str
    group: str
    status: str
    sent_ns: int
    end_ns: int
    """Last token, or where there was none the moment the client gave up or was refused."""
    first_ns: int | None
    client_lag_ns: int
    """Sent later than intended (closed loop: later than released)."""
    held_back_ns: int
    """Of that: due, but held back by the client's own concurrency cap."""
    prompt_tokens: int | None
    output_tokens: int | None
    life: EngineLife | None
    parts: dict[str, int] | None
    first_parts: dict[str, int] | None

    @property
    def e2el_ns(self) -> int:
        return self.end_ns - self.sent_ns


def step_times(steps: pa.Table | None) -> StepTimes:
    """The steps of ``steps.parquet``; an empty one without a table."""
    if steps is None:
        empty = np.empty(0, np.int64)
        return StepTimes(empty, empty, empty)
    columns = (steps[name].to_numpy().astype(np.int64) for name in ("step_id", "t_start", "t_end"))
    return StepTimes(*columns)


def engine_lives(events: pa.Table | None, steps: StepTimes) -> dict[str, list[EngineLife]]:
    """Lives of all sequences by the client's request id (``n`` > 1 gives several to one request)."""
    if events is None:
        return {}
    by_core: dict[str, list[dict[str, Any]]] = {}
    owner: dict[str, str] = {}
    for batch in events.to_batches():
        for event in batch.to_pylist():
            by_core.setdefault(event["core_id"], []).append(event)
            owner[event["core_id"]] = event["request_id"]
    found: dict[str, list[EngineLife]] = {}
    for core_id, rows in by_core.items():
        life = engine_life(rows, steps)
        if life is not None:
            found.setdefault(owner[core_id], []).append(life)
    return found


def split_requests(
    requests: Iterable[Mapping[str, Any]], lives: Mapping[str, Sequence[EngineLife]]
) -> list[RequestSplit]:
    """Join client rows with the engine's lives by request id. Requests that were never sent are left out.

    Of several sequences of one request the one that ended last decides: the client waited for it. A request
    that failed or was given up while the trace went on, and that the core never saw, was in the front end.
    """
    traced_until = max((life.end_ns for many in lives.values() for life in many), default=0)
    found = []
    for row in requests:
        sent = row["sent_ns"]
        end = row["last_token_ns"] if row["last_token_ns"] is not None else row["close_ns"]
        if sent is None or end is None:
            continue
        mine = lives.get(row["request_id"], ())
        life = max(mine, key=lambda one: one.end_ns) if mine else None
        due = row["intended_ns"] if row["intended_ns"] is not None else row["released_ns"]
        released = row["released_ns"]
        first = row["first_token_ns"]
        end = max(end, sent)
        parts = None if life is None else cut(life, sent, end)
        if life is None and row["status"] != "ok" and first is None and end <= traced_until:
            parts = {**dict.fromkeys(PARTS, 0), FRONT_END: end - sent}
        found.append(
            RequestSplit(
                request_id=row["request_id"],
                phase=row["phase"],
                group=row["group"],
                status=row["status"],
                sent_ns=sent,
                end_ns=end,
                first_ns=first,
                client_lag_ns=max(0, sent - due) if due is not None else 0,
                held_back_ns=max(0, released - due) if due is not None and released is not None else 0,
                prompt_tokens=row["prompt_tokens"],
                output_tokens=row["output_tokens"],
                life=life,
                parts=parts,
                first_parts=None if life is None or first is None else cut(life, sent, first, first=True),
            )
        )
    return found


def cut(life: EngineLife, sent_ns: int, end_ns: int, *, first: bool = False) -> dict[str, int]:
    """Time of each part in [sent, end]; sums to exactly ``end_ns - sent_ns``.

    Args:
        life: the engine's side; what lies outside the client's stamps is cut off (a client that has gone does
            not wait for the engine to notice).
        first: the way to the first token: what comes after the engine had it is output.
    """
    parts = dict.fromkeys(PARTS, 0)
    last = end_ns
    if first and life.first_token_ns is not None:
        last = min(end_ns, life.first_token_ns)
    at = min(max(sent_ns, life.submitted_ns), end_ns)
    parts[FRONT_END] = at - sent_ns
    for segment in life.segments:
        until = min(segment.end_ns, last)
        if until > at:
            parts[segment.state] += until - at
            at = until
    parts[OUTPUT] = end_ns - at
    return parts


def split_run(run: Run) -> list[RequestSplit]:
    """All requests of a stored run, warm-up included.

    Raises:
        RunCorruptError: a table can't be read.
    """
    from workbench.timeline.tables import read_checked

    requests = read_checked(run, "requests")
    if requests is None:
        return []
    lives = engine_lives(read_checked(run, "events"), step_times(read_checked(run, "steps")))
    return split_requests(requests.to_pylist(), lives)


def split_frame(splits: Sequence[RequestSplit]) -> pd.DataFrame:
    """One row per request: identity, ``e2el_ns``, ``client_lag_ns``, a column ``PART_ns`` for each part (null
    without a trace), ``ttft_PART_ns`` for the way to the first token, and preemption counters.
    """
    import pandas as pd

    rows = []
    for one in splits:
        row: dict[str, Any] = {
            "request_id": one.request_id,
            "phase": one.phase,
            "group": one.group,
            "status": one.status,
            "e2el_ns": one.e2el_ns,
            "ttft_ns": None if one.first_ns is None else one.first_ns - one.sent_ns,
            "client_lag_ns": one.client_lag_ns,
        }
        for part in PARTS:
            row[f"{part}_ns"] = None if one.parts is None else one.parts[part]
            row[f"ttft_{part}_ns"] = None if one.first_parts is None else one.first_parts[part]
        life = one.life
        row["num_preemptions"] = None if life is None else life.num_preemptions
        row["lost_tokens"] = None if life is None else life.lost_tokens
        row["recomputed_tokens"] = None if life is None else life.recomputed_tokens
        row["traced"] = life is not None and life.complete
        rows.append(row)
    frame = pd.DataFrame(rows)
    integers = [
        name for name in frame.columns if name.endswith(("_ns", "_tokens")) or name == "num_preemptions"
    ]
    return frame.astype(dict.fromkeys(integers, "Int64"))
