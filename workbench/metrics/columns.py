"""The stored tables as arrays: one row per measured request, one per event with tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from workbench.errors import RunCorruptError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Columns of n requests. Times are ms after ``origin_ns``; NaN = it did not happen or is not known."""

    origin_ns: int
    group: tuple[str, ...]
    status: tuple[str, ...]
    error_class: tuple[str | None, ...]
    intended: Floats
    released: Floats
    sent: Floats
    first: Floats
    last: Floats
    close: Floats
    prompt_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    first_event_tokens: Floats

    def __len__(self) -> int:
        return len(self.status)

    @property
    def ok(self) -> Bools:
        return np.array([s == "ok" for s in self.status], dtype=np.bool_)

    def in_group(self, name: str) -> Bools:
        return np.array([g == name for g in self.group], dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events with at least one token, each request's together and in order of arrival."""

    owner: Ints
    """Row of the request in :class:`Requests`."""
    time: Floats
    """Arrival, ms after the origin."""
    tokens: Ints


def read_requests(table: pa.Table, origin_ns: int) -> Requests:
    """Rows of the measured phase of ``requests.parquet``."""
    table = measured(table)

    def stamps(name: str) -> Floats:
        # The origin is taken off in integers: a float holds the difference exactly, not the stamp.
        column = pc.subtract(table[name].cast(pa.int64()), origin_ns)
        return _floats(column) / 1e6

    return Requests(
        origin_ns=origin_ns,
        group=tuple(g or "default" for g in table["group"].to_pylist()),
        status=tuple(table["status"].to_pylist()),
        error_class=tuple(table["error_class"].to_pylist()),
        intended=stamps("intended_ns"),
        released=stamps("released_ns"),
        sent=stamps("sent_ns"),
        first=stamps("first_token_ns"),
        last=stamps("last_token_ns"),
        close=stamps("close_ns"),
        prompt_tokens=_floats(table["prompt_tokens"]),
        cached_tokens=_floats(table["cached_tokens"]),
        output_tokens=_floats(table["output_tokens"]),
        first_event_tokens=_floats(table["first_event_tokens"]),
    )


def read_events(chunks: pa.Table, requests: pa.Table, origin_ns: int) -> Events:
    """Events of measured requests out of ``chunks.parquet``; role-only, empty and usage events have no
    token.

    Raises:
        RunCorruptError: one of the tables is none of requests or of chunks.
    """
    if missing := {"request_id", "n_tokens", "recv_ns"} - set(chunks.column_names):
        raise RunCorruptError(f"chunks: no column {', '.join(sorted(missing))}")
    ids = measured(requests)["request_id"]
    owner_column = pc.index_in(chunks["request_id"], value_set=ids.combine_chunks())
    keep = pc.and_(pc.is_valid(owner_column), pc.fill_null(pc.greater(chunks["n_tokens"], 0), False))
    owner = _ints(pc.filter(owner_column, keep))
    time = (_ints(pc.filter(chunks["recv_ns"], keep)) - origin_ns) / 1e6
    tokens = _ints(pc.filter(chunks["n_tokens"], keep))
    order = np.argsort(owner, kind="stable")
    return Events(owner[order], time[order], tokens[order])


def measured(table: pa.Table) -> pa.Table:
    """The rows of ``requests.parquet`` that count.

    Raises:
        RunCorruptError: the table is none of requests.
    """
    if "phase" not in table.column_names:
        raise RunCorruptError("requests: no column phase")
    return table.filter(pc.equal(table["phase"], "measure"))


def _floats(column: pa.ChunkedArray) -> Floats:
    values = column.cast(pa.float64()).to_numpy()
    return np.asarray(values, dtype=np.float64)


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)
