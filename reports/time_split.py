"""Exact time parts of requests beside the latencies that objectives bound: for the figures of where time
goes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from workbench.errors import RunCorruptError
from workbench.metrics.columns import read_events, read_requests
from workbench.metrics.latency import Latencies
from workbench.runstore import Run
from workbench.timeline.segments import EngineLife
from workbench.timeline.split import engine_lives, split_frame, split_requests, step_times

MOST_REQUESTS = 4_000
_NEEDED = ("sent_ns", "first_token_ns", "last_token_ns", "close_ns", "intended_ns", "released_ns")


def time_split(run: Run, limit: int = MOST_REQUESTS) -> pd.DataFrame | None:
    """Rows of ``workbench.timeline.split.split_frame`` for measured requests, with ``ttft_ms``, ``itl_ms``,
    ``stall_ms`` … as in docs/metrics.md. Above ``limit`` requests it is an even sample over the order of
    TTFT, the slowest included; ``attrs["total"]`` is the number of all. None: the run has no requests.

    Raises:
        RunCorruptError: a table can't be read or lacks a column.
    """
    try:
        requests = run.arrow("requests")
        if requests is None:
            return None
        requests = requests.filter(pc.equal(requests["phase"], "measure"))
        total = requests.num_rows
        if not total:
            return None
        sample = requests.take(pa.array(_even(requests, limit)))
        frame = split_frame(split_requests(sample.to_pylist(), _lives(run, sample)))
        found = _with_latencies(run, sample, frame)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise RunCorruptError(f"{run.id}: the time split can't be computed: {str(error)[:120]}") from None
    found.attrs["total"] = total
    return found


def _even(requests: pa.Table, limit: int) -> np.ndarray:
    """Rows to take: all, or ``limit`` of them evenly by TTFT (requests without a first token come last)."""
    missing = [name for name in _NEEDED if name not in requests.column_names]
    if missing:
        raise KeyError(f"column {missing[0]} is missing")
    if requests.num_rows <= limit:
        return np.arange(requests.num_rows)
    ttft = pc.subtract(requests["first_token_ns"], requests["sent_ns"]).to_numpy(zero_copy_only=False)
    order = np.argsort(ttft.astype(float), kind="stable")
    return np.sort(order[np.unique(np.linspace(0, len(order) - 1, limit).round().astype(int))])


def _lives(run: Run, sample: pa.Table) -> dict[str, list[EngineLife]]:
    events = run.arrow("events")
    if events is None:
        return {}
    mine = pc.is_in(events["request_id"], value_set=sample["request_id"].combine_chunks())
    return engine_lives(events.filter(mine), step_times(run.arrow("steps")))


def _with_latencies(run: Run, sample: pa.Table, frame: pd.DataFrame) -> pd.DataFrame:
    chunks = run.arrow("chunks")
    if chunks is None or frame.empty:
        return frame
    origin = int(pc.min(sample["sent_ns"]).as_py() or 0)
    latencies = Latencies(read_requests(sample, origin), read_events(chunks, sample, origin))
    values = pd.DataFrame({f"{key}_ms": found for key, found in latencies.per_request.items()})
    values["itl_ms"] = latencies.itl_per_request()
    values["request_id"] = sample["request_id"].to_pylist()
    return frame.merge(values, on="request_id", how="left", validate="one_to_one")
