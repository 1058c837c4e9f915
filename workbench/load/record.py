"""The client's record of one request, and the tables made of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from workbench.load.stream import Chunk
from workbench.records import CHUNKS, REQUESTS


@dataclass(slots=True)
class RequestRecord:
    """One row of ``requests.parquet``, in the making. None = it did not happen or is not known."""

    request_id: str
    index: int
    phase: str
    group: str
    max_tokens: int
    worker: int = 0
    intended_ns: int | None = None
    released_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    close_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str | None = None
    first_event_tokens: int | None = None
    status: str = "cancelled"
    http_status: int | None = None
    error_class: str | None = None
    error: str | None = None
    finish_reason: str | None = None
    output_sha256: str | None = None
    session: int | None = None
    turn: int | None = None
    attempts: int | None = None
    chunks: list[Chunk] = field(default_factory=list)


def requests_table(records: Sequence[RequestRecord]) -> pa.Table:
    """``requests.parquet``, in the order of the schedule."""
    columns = [pa.array([getattr(r, f.name) for r in records], type=f.type) for f in REQUESTS]
    return pa.Table.from_arrays(columns, schema=REQUESTS)


def chunks_table(records: Iterable[RequestRecord]) -> pa.Table:
    """``chunks.parquet``: all events of all requests; each request's lie together, in order of arrival."""
    ids: list[str] = []
    chunks: list[Chunk] = []
    for record in records:
        ids.extend([record.request_id] * len(record.chunks))
        chunks.extend(record.chunks)
    return pa.Table.from_arrays(
        [
            pa.array(ids, pa.string()),
            pa.array([c.recv_ns for c in chunks], pa.int64()),
            pa.array([c.kind for c in chunks], pa.string()),
            pa.array([c.n_tokens for c in chunks], pa.int32()),
            pa.array([c.source for c in chunks], pa.string()),
        ],
        schema=CHUNKS,
    )
