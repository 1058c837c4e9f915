"""Tables of a run, read as untrusted data: what is used has the columns and the kinds that it must have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as types

from engine.trace.tables import EVENTS, STEPS
from workbench.errors import RunCorruptError
from workbench.profiling.kineto import KERNELS
from workbench.records import CHUNKS, REQUESTS, TELEMETRY

if TYPE_CHECKING:
    from workbench.runstore import Run

SCHEMAS: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "steps": STEPS.schema,
    "events": EVENTS.schema,
    "telemetry_cpu": TELEMETRY,
    "telemetry_gpu": TELEMETRY,
    "kernels": KERNELS,
}
_LATER = frozenset({"session", "turn", "attempts", "worker", "gpu_forward_ns"})
"""Columns that runs of earlier versions do not have."""
_NEVER_NULL = frozenset(
    {
        *("step_id", "t_start", "t_end", "num_running", "num_waiting", "prefill_tokens", "decode_tokens"),
        *("t_ns", "core_id", "kind", "name", "request_id", "phase", "status"),
    }
)
_NULL_OUTSIDE_STEPS = frozenset({"step_id"})
"""In ``events``: of an event outside a step."""


def read_checked(run: Run, name: str) -> pa.Table | None:
    """The table ``name``; None when the run has none.

    Raises:
        RunCorruptError: it can't be read, or it is not such a table.
    """
    table = run.arrow(name)
    if table is None:
        return None
    path, schema = run.path / f"{name}.parquet", SCHEMAS[name]
    check_columns(path, table.schema, schema, [column for column in schema.names if column not in _LATER])
    never = _NEVER_NULL - _NULL_OUTSIDE_STEPS if name == "events" else _NEVER_NULL
    for column in never.intersection(schema.names):
        if table[column].null_count:
            raise RunCorruptError(f"{path}: column {column} has missing values")
    return table


def check_columns(path: Path, have: pa.Schema, schema: pa.Schema, needed: Iterable[str]) -> None:
    """
    Raises:
        RunCorruptError: a column of ``needed`` is missing, or is of another kind than in ``schema``.
    """
    for name in needed:
        if name not in have.names:
            raise RunCorruptError(f"{path}: no column {name}: not a table of this name, or cut")
        got, wanted = have.field(name).type, schema.field(name).type
        if not types.is_null(got) and _kind(got) != _kind(wanted):
            raise RunCorruptError(f"{path}: column {name} is {got}, not {wanted}")


def _kind(one: pa.DataType) -> str:
    if types.is_integer(one):
        return "integer"
    if types.is_floating(one):
        return "number"
    return "text" if types.is_string(one) or types.is_large_string(one) else str(one)
