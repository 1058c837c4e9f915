"""Readers of trace files. Each takes columns by name, knows the file's unit of time, and names the line
that is
wrong."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from workloads.errors import WorkloadError
from workloads.traces.rows import Blocks, Ints, TraceRows

_NS_PER_MS = 1_000_000


def read_trace(format: str, path: str, block_tokens: int = 512) -> TraceRows:
    """Read a whole trace file.

    Args:
        format: mooncake | azure | burstgpt.
        block_tokens: Mooncake: tokens that one hash id stands for.

    Raises:
        WorkloadError: the file can't be read, or a line is not of this format.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise WorkloadError("path", path, f"a readable trace file ({error.strerror})") from None
    if format == "mooncake":
        rows = _mooncake(data, path, block_tokens)
    else:
        rows = _csv_rows(data, path, _AZURE if format == "azure" else _BURSTGPT)
    if not len(rows):
        raise WorkloadError("path", path, "a trace with at least one row")
    return _in_order(rows)


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None


def _mooncake(data: bytes, path: str, block_tokens: int) -> TraceRows:
    """JSON lines: ``timestamp`` in ms, ``hash_ids`` of 512-token blocks, chained from the prompt's start."""
    decoder = msgspec.json.Decoder(_Mooncake)
    rows: list[_Mooncake] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise _bad(path, number, str(error)) from None
        ids = row.hash_ids
        if ids is not None and len(ids) != -(-row.input_length // block_tokens):
            needed = -(-row.input_length // block_tokens)
            raise _bad(
                path,
                number,
                f"{len(ids)} hash_ids where {row.input_length} tokens need {needed} of {block_tokens} tokens",
            )
        rows.append(row)
    blocks = None
    if rows and all(row.hash_ids is not None for row in rows):
        counts = np.fromiter((len(row.hash_ids or ()) for row in rows), np.int64, len(rows))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        flat = np.fromiter((i for row in rows for i in row.hash_ids or ()), np.int64, int(offsets[-1]))
        blocks = Blocks(flat, offsets, block_tokens)
    return TraceRows(
        np.array([round(row.timestamp * _NS_PER_MS) for row in rows], np.int64),
        np.array([row.input_length for row in rows], np.int64),
        np.array([row.output_length for row in rows], np.int64),
        blocks,
        counts={"rows_in_file": len(rows)},
    )


class _Layout(msgspec.Struct, frozen=True):
    """Names of a CSV's columns and the meaning of its time."""

    name: str
    time: str
    inputs: str
    outputs: str
    to_ns: Callable[[Sequence[str]], Ints]
    model: str | None = None
    log_type: str | None = None

    @property
    def required(self) -> tuple[str, ...]:
        return (self.time, self.inputs, self.outputs)


def _datetimes(texts: Sequence[str]) -> Ints:
    """``2023-11-16 18:17:03.9799600`` (100 ns) and ``2024-05-10 00:00:00.009930+00:00`` (UTC) as ns."""
    plain = [text.removesuffix("+00:00").removesuffix("Z") for text in texts]
    return np.array(plain, dtype="datetime64[ns]").astype(np.int64)


def _seconds(texts: Sequence[str]) -> Ints:
    return np.rint(np.array(texts, np.float64) * 1e9).astype(np.int64)


_AZURE = _Layout("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _datetimes)
_BURSTGPT = _Layout(
    "BurstGPT", "Timestamp", "Request tokens", "Response tokens", _seconds, "Model", "Log Type"
)


def _csv_rows(data: bytes, path: str, layout: _Layout) -> TraceRows:
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise WorkloadError("path", path, f"UTF-8 text ({error.reason})") from None
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in layout.required if name not in header]
    if missing:
        raise WorkloadError(
            "path", path, f"a trace of {layout.name}: its first line lacks {', '.join(missing)}"
        )
    rows = [row for row in reader if row]
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise _bad(path, number, f"{len(row)} fields, not {len(header)}")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else {}

    def column(name: str, convert: Callable[[Sequence[str]], Ints]) -> Ints:
        texts = columns.get(name, ())
        try:
            return convert(texts)
        except (ValueError, OverflowError):
            for number, text in enumerate(texts, 2):
                try:
                    convert([text])
                except (ValueError, OverflowError):
                    raise _bad(path, number, f"{name}={text!r}") from None
            raise

    def words(name: str | None) -> np.ndarray | None:
        return np.array(columns[name]) if name is not None and name in columns else None

    time_ns = column(layout.time, layout.to_ns)
    return TraceRows(
        time_ns - (time_ns.min() if len(time_ns) else 0),
        column(layout.inputs, _whole),
        column(layout.outputs, _whole),
        None,
        words(layout.model),
        words(layout.log_type),
        {"rows_in_file": len(rows)},
    )


def _whole(texts: Sequence[str]) -> Ints:
    return np.array([int(text) for text in texts], np.int64)


def _in_order(rows: TraceRows) -> TraceRows:
    """By time, rows of one stamp as in the file."""
    if (np.diff(rows.time_ns) >= 0).all():
        return rows
    rows.counts["rows_out_of_order"] = int((np.diff(rows.time_ns) < 0).sum())
    return rows.take(np.argsort(rows.time_ns, kind="stable"))


def _bad(path: str, line: int, what: str) -> WorkloadError:
    return WorkloadError("path", path, f"a well-formed trace (line {line}: {what})")
