"""What of a trace is replayed, and what that did to it: every step counts the rows that it touched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.errors import WorkloadError
from workloads.sources import TraceSource
from workloads.traces.rows import Blocks, Ints, TraceRows


def select(rows: TraceRows, source: TraceSource, max_rows: int | None = None) -> TraceRows:
    """Filters, window and length policy of ``source``; times are re-based to the window's start.

    Args:
        max_rows: at most so many, from the window's start (beside the source's own limit).

    Raises:
        WorkloadError: nothing is left.
    """
    rows = replace(rows, counts=dict(rows.counts))
    for name, wanted in (("model", source.model), ("log_type", source.log_type)):
        column = getattr(rows, name)
        if wanted is not None:
            if column is None:
                raise WorkloadError(name, wanted, f"left out: {source.path} has no such column")
            known = sorted(set(column.tolist()))
            rows = _keep(rows, column == wanted, f"dropped_other_{name}")
            if not len(rows):
                raise WorkloadError(name, wanted, f"one of {', '.join(known[:8])}")
    # A failure is recorded as a reply without tokens: it says nothing about how much to generate.
    rows = _keep(rows, (rows.input_tokens > 0) & (rows.output_tokens > 0), "dropped_failed_or_empty")
    if source.min_input_tokens > 1:
        rows = _keep(rows, rows.input_tokens >= source.min_input_tokens, "dropped_under_min_input")
    start_ns = round(source.start_s * 1e9)
    inside = rows.time_ns >= start_ns
    if source.end_s is not None:
        inside &= rows.time_ns < round(source.end_s * 1e9)
    rows = _keep(rows, inside, "dropped_outside_window")
    rows = replace(rows, time_ns=rows.time_ns - start_ns)
    if not len(rows):
        raise WorkloadError(
            "start_s", source.start_s, f"a window of {source.path} that holds rows ({rows.counts})"
        )
    rows = _fit(rows, source)
    limit = min((n for n in (source.max_rows, max_rows) if n is not None), default=None)
    if limit is not None and limit < len(rows):
        rows.counts["dropped_beyond_max_rows"] = len(rows) - limit
        rows = rows.take(np.arange(limit))
    rows.counts["rows_used"] = len(rows)
    return rows


def offsets_ns(rows: TraceRows, source: TraceSource, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """(order, offsets): which row is sent when, after spreading the stamps' grid and scaling time.

    Returns:
        order: [n] rows in order of sending; offsets: [n] ns after the start, ascending.
    """
    times = rows.time_ns
    if source.spread == "uniform":
        grid = grid_ns(rows)
        rows.counts["spread_grid_ms"] = round(grid / 1e6)
        times = times + rng.integers(0, max(grid, 1), size=len(times))
    order = np.argsort(times, kind="stable")
    return order, np.rint(times[order] / source.speed).astype(np.int64)


def grid_ns(rows: TraceRows) -> int:
    """The step on which the stamps lie: the median gap between different ones; 0 with a single stamp."""
    stamps = np.unique(rows.time_ns)
    return int(np.median(np.diff(stamps))) if len(stamps) > 1 else 0


def _keep(rows: TraceRows, mask: np.ndarray, name: str) -> TraceRows:
    dropped = int((~mask).sum())
    if not dropped:
        return rows
    rows.counts[name] = dropped
    return rows.take(np.flatnonzero(mask))


def _fit(rows: TraceRows, source: TraceSource) -> TraceRows:
    inputs, outputs = rows.input_tokens, rows.output_tokens
    most_in, most_out = source.max_input_tokens, source.max_output_tokens
    over_in = inputs > most_in if most_in is not None else np.zeros(len(rows), np.bool_)
    over_out = outputs > most_out if most_out is not None else np.zeros(len(rows), np.bool_)
    if source.length_policy == "drop":
        rows = _keep(rows, ~(over_in | over_out), "dropped_too_long")
        if not len(rows):
            raise WorkloadError("max_input_tokens", most_in, "a maximum that some row of the window keeps to")
        return rows
    blocks = rows.blocks
    if source.length_policy == "truncate":
        if most_in is not None and over_in.any():
            rows.counts["truncated_input"] = int(over_in.sum())
            inputs = np.minimum(inputs, most_in)
            blocks = _cut(blocks, inputs)
        if most_out is not None and over_out.any():
            rows.counts["truncated_output"] = int(over_out.sum())
            outputs = np.minimum(outputs, most_out)
    else:
        if most_in is not None and over_in.any():
            inputs, blocks = _scaled_inputs(rows, most_in)
            rows.counts["scaled_input"] = int((inputs != rows.input_tokens).sum())
        if most_out is not None and over_out.any():
            outputs = np.maximum(outputs * most_out // int(outputs.max()), 1)
            rows.counts["scaled_output"] = int((outputs != rows.output_tokens).sum())
    return replace(rows, input_tokens=inputs, output_tokens=outputs, blocks=blocks)


def _scaled_inputs(rows: TraceRows, most: int) -> tuple[Ints, Blocks | None]:
    """All inputs by one factor. With hash ids the block shrinks by the same factor, so that what was
    shared stays
    shared."""
    inputs, longest = rows.input_tokens, int(rows.input_tokens.max())
    if rows.blocks is None:
        return np.maximum(inputs * most // longest, 1), None
    whole = rows.blocks.tokens
    small = max(whole * most // longest, 1)
    full = np.diff(rows.blocks.offsets) - 1
    last = inputs - full * whole
    # Never 0: a row keeps all of its blocks; and never over the maximum.
    scaled = np.minimum(full * small + np.clip(last * small // whole, 1, small), most)
    blocks = Blocks(rows.blocks.ids, rows.blocks.offsets, small)
    return scaled, _cut(blocks, scaled)


def _cut(blocks: Blocks | None, inputs: Ints) -> Blocks | None:
    """Only as many ids as the (shorter) inputs need."""
    if blocks is None:
        return None
    needed = -(-inputs // blocks.tokens)
    counts = np.diff(blocks.offsets)
    place = np.arange(len(blocks.ids)) - np.repeat(blocks.offsets[:-1], counts)
    kept = blocks.ids[place < np.repeat(needed, counts)]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.minimum(needed, counts))))
    return Blocks(kept, offsets, blocks.tokens)
