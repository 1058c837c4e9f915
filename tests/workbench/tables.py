"""Hand-made request and chunk tables: one call per request, times in ms."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from workbench.load.record import RequestRecord, chunks_table, requests_table
from workbench.load.stream import Chunk

MS = 1_000_000
ORIGIN_NS = 9_000_000_000_000_123


@dataclass
class Book:
    """Collects requests; ``tables()`` gives what a run stores."""

    records: list[RequestRecord] = field(default_factory=list)

    def add(
        self,
        sent: float | None,
        events: list[tuple[float, int]],
        *,
        intended: float | None = None,
        status: str = "ok",
        group: str = "default",
        phase: str = "measure",
        close: float | None = None,
        error_class: str | None = None,
        prompt_tokens: int | None = 10,
        cached_tokens: int | None = None,
        released: float | None = None,
    ) -> RequestRecord:
        """``events``: (arrival, tokens), also of events without tokens."""
        index = len(self.records)
        due = intended if intended is not None else sent
        carrying = [(at, n) for at, n in events if n]
        ends = close if close is not None else (events[-1][0] if events else sent)
        record = RequestRecord(
            request_id=f"r{index}", index=index, phase=phase, group=group, max_tokens=99,
            intended_ns=ns(due), released_ns=ns(released if released is not None else due),
            sent_ns=ns(sent), close_ns=ns(ends), status=status, error_class=error_class,
            first_token_ns=ns(carrying[0][0]) if carrying else None,
            last_token_ns=ns(carrying[-1][0]) if carrying else None,
            first_event_tokens=carrying[0][1] if carrying else None,
            output_tokens=sum(n for _, n in carrying), prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            chunks=[Chunk(ns(at), "content" if n else "role", n, "token_ids", 1) for at, n in events],
        )  # fmt: skip
        self.records.append(record)
        return record

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return requests_table(self.records), chunks_table(self.records)


def ns(ms: float | None) -> int | None:
    return None if ms is None else ORIGIN_NS + round(ms * MS)
