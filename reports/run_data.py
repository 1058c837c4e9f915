"""Reads what the figures of a run need: chosen columns of its Parquet tables, stamps turned into seconds and
ms.

A table that is missing is None; one that can't be read, or lacks a column, raises one line. Stamps are
subtracted as integers before they become floats, so nothing is lost to rounding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reports.figures.style import MAX_POINTS
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest

_REQUEST_COLUMNS = [
    *("request_id", "index", "phase", "group", "intended_ns", "sent_ns", "first_token_ns", "last_token_ns"),
    *("close_ns", "prompt_tokens", "cached_tokens", "output_tokens", "status", "http_status", "error_class"),
    *("error", "finish_reason"),
]
_STEP_COLUMNS = [
    *("step_id", "t_start", "t_schedule", "t_prepare", "t_forward", "t_sample", "t_end", "num_prefill_reqs"),
    *("num_decode_reqs", "prefill_tokens", "decode_tokens", "decode_sum_sk", "num_running", "num_waiting"),
    *("admission_stop", "kv_used", "kv_free", "kv_cached", "num_preempted", "preempted_tokens"),
]
_EVENT_COLUMNS = ["t_ns", "request_id", "core_id", "kind", "step_id", "tokens", "value", "detail"]
_SHOWN_GAPS = 1_500


@dataclass(frozen=True)
class RunData:
    """The tables of one run folder, read when asked for. ``origin_ns`` is second 0 of every time axis."""

    path: Path
    origin_ns: int

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> RunData:
        """``path``: the run's folder. Second 0 is the first measured request, else the manifest's first clock
        pair.
        """
        table = _arrow(path, "requests", ["sent_ns", "phase"], or_none=True)
        if table is not None:
            measured = table.filter(pc.equal(table["phase"], "measure"))
            first = pc.min((measured if measured.num_rows else table)["sent_ns"]).as_py()
            if first is not None:
                return cls(path, int(first))
        return cls(path, manifest.clock[0].monotonic_ns if manifest.clock else 0)

    def requests(self) -> pd.DataFrame | None:
        """One row per measured request: ``sent_s first_s last_s close_s`` from the origin, ``ttft_ms
        e2el_ms`` …
        """
        table = _arrow(self.path, "requests", _REQUEST_COLUMNS)
        if table is None:
            return None
        return _sql(
            f"""SELECT request_id, index, "group", status, error_class, error, finish_reason, http_status,
                prompt_tokens, cached_tokens, output_tokens,
                (sent_ns - {self.origin_ns}) / 1e9 AS sent_s,
                (first_token_ns - {self.origin_ns}) / 1e9 AS first_s,
                (last_token_ns - {self.origin_ns}) / 1e9 AS last_s,
                (close_ns - {self.origin_ns}) / 1e9 AS close_s,
                (first_token_ns - sent_ns) / 1e6 AS ttft_ms, (last_token_ns - sent_ns) / 1e6 AS e2el_ms,
                (sent_ns - intended_ns) / 1e6 AS lag_ms
            FROM data WHERE phase = 'measure' ORDER BY sent_ns NULLS LAST, index""",
            table,
        )

    def gaps(self) -> pd.DataFrame | None:
        """Gaps between token events of one request, by size: ``itl_ms`` and its weight ``tokens``.

        Above 1,500 gaps neighbours are merged: a row then stands for ``gaps`` of them, with the largest
        ``itl_ms`` and all their tokens. A cumulated share is exact at every row. Equal gaps are one row, and
        the 500 longest are never merged with others.
        """
        table = _arrow(self.path, "chunks", ["request_id", "recv_ns", "n_tokens"])
        requests = _arrow(self.path, "requests", ["request_id", "phase"])
        if table is None or requests is None:
            return None
        measured = requests.filter(pc.equal(requests["phase"], "measure"))["request_id"]
        owner = pc.index_in(table["request_id"], value_set=measured.combine_chunks())
        events = pa.table({"owner": owner, "recv_ns": table["recv_ns"], "n_tokens": table["n_tokens"]})
        return _sql(
            f"""WITH gap AS (SELECT n_tokens AS tokens,
                    recv_ns - lag(recv_ns) OVER (PARTITION BY owner ORDER BY recv_ns) AS gap_ns
                FROM data WHERE n_tokens >= 1 AND owner IS NOT NULL),
            ranked AS (SELECT gap_ns / 1e6 / tokens AS itl_ms, tokens, count(*) OVER () AS n,
                    rank() OVER (ORDER BY gap_ns / tokens) AS r FROM gap WHERE gap_ns IS NOT NULL)
            SELECT max(itl_ms) AS itl_ms, sum(tokens)::BIGINT AS tokens, count(*) AS gaps FROM ranked
            GROUP BY CASE WHEN n - r < 500 THEN r ELSE r // ((n + {_SHOWN_GAPS - 1}) // {_SHOWN_GAPS}) - n END
            ORDER BY itl_ms""",
            events,
        )

    def tokens_over_time(self, bucket_s: float) -> pd.DataFrame | None:
        """Output tokens received per bucket: ``t_s`` (start of the bucket) and ``tokens``; empty buckets are
        0.
        """
        table = _arrow(self.path, "chunks", ["recv_ns", "n_tokens"])
        if table is None:
            return None
        width = max(1, int(bucket_s * 1e9))
        return _sql(
            f"""WITH filled AS (SELECT (recv_ns - {self.origin_ns}) // {width} AS b, sum(n_tokens) AS tokens
                FROM data WHERE n_tokens >= 1 AND recv_ns >= {self.origin_ns} GROUP BY b)
            SELECT r.b * {width} / 1e9 AS t_s, coalesce(tokens, 0)::DOUBLE AS tokens
            FROM (SELECT unnest(range(0, (SELECT least(coalesce(max(b), -1), {MAX_POINTS}) + 1 FROM filled)))
                AS b) r
            LEFT JOIN filled USING (b) ORDER BY b""",
            table,
        )

    def steps(self) -> pd.DataFrame | None:
        """Engine steps: ``start_s end_s step_ms`` and the phases ``schedule_ms … output_ms`` beside the
        counters.
        """
        table = _arrow(self.path, "steps", _STEP_COLUMNS)
        if table is None:
            return None
        return _sql(
            f"""SELECT * EXCLUDE (t_start, t_schedule, t_prepare, t_forward, t_sample, t_end),
                (t_start - {self.origin_ns}) / 1e9 AS start_s, (t_end - {self.origin_ns}) / 1e9 AS end_s,
                (t_end - t_start) / 1e6 AS step_ms, (t_schedule - t_start) / 1e6 AS schedule_ms,
                (t_prepare - t_schedule) / 1e6 AS prepare_ms, (t_forward - t_prepare) / 1e6 AS forward_ms,
                (t_sample - t_forward) / 1e6 AS sample_ms, (t_end - t_sample) / 1e6 AS output_ms
            FROM data ORDER BY t_start""",
            table,
        )

    def events(self, ids: Sequence[str] | None = None) -> pd.DataFrame | None:
        """Engine events in time order, with ``t_s``, of all requests or of those in ``ids``. ``kind`` as in
        ``engine.trace.records.EventKind``.
        """
        table = _arrow(self.path, "events", _EVENT_COLUMNS)
        if table is None:
            return None
        if ids is not None:
            table = table.filter(pc.is_in(table["request_id"], value_set=pa.array(list(ids), pa.string())))
        return _sql(
            f"""SELECT * EXCLUDE (t_ns), (t_ns - {self.origin_ns}) / 1e9 AS t_s
            FROM data ORDER BY t_ns, step_id""",
            table,
        )

    def lives(self) -> pd.DataFrame | None:
        """When the engine had each request: ``request_id``, ``from_s``, ``to_s`` (null: it never finished),
        by beginning.
        """
        table = _arrow(self.path, "events", ["t_ns", "request_id", "kind"])
        if table is None:
            return None
        return _sql(
            f"""SELECT request_id, (min(t_ns) - {self.origin_ns}) / 1e9 AS from_s,
                CASE WHEN count(*) FILTER (kind = 'finished') >= count(*) FILTER (kind = 'queued')
                    THEN (max(t_ns) - {self.origin_ns}) / 1e9 END AS to_s
            FROM data GROUP BY request_id ORDER BY from_s, request_id""",
            table,
        )

    def telemetry(self) -> pd.DataFrame | None:
        """Samples of all collectors: ``t_s name value unit source status``, thinned to what a strip can
        show.
        """
        found = []
        for name in ("telemetry_cpu", "telemetry_gpu"):
            table = _arrow(self.path, name, ["t_ns", "name", "value", "unit", "source", "status"])
            if table is not None and table.num_rows:
                found.append(
                    _sql(
                        f"""SELECT (t_ns - {self.origin_ns}) / 1e9 AS t_s, name, value, unit, source, status
                        FROM (SELECT *, row_number() OVER (PARTITION BY name, source ORDER BY t_ns) AS r,
                                count(*) OVER (PARTITION BY name, source) AS n FROM data)
                        WHERE r % greatest(1, n // 2000) = 0 ORDER BY name, source, t_ns""",
                        table,
                    )
                )
        return pd.concat(found, ignore_index=True) if found else None


def _arrow(folder: Path, name: str, columns: list[str], *, or_none: bool = False) -> pa.Table | None:
    """Chosen columns of one table; the file must lie in the folder (a link out of the store is refused)."""
    path = folder / f"{name}.parquet"
    if not path.is_file():
        return None
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RunCorruptError(f"{path.name}: links to a file outside the run's folder")
        file = pq.ParquetFile(path)
        missing = [c for c in columns if c not in file.schema_arrow.names]
        if missing:
            raise RunCorruptError(f"{path.name}: column {missing[0]} is missing")
        return file.read(columns=columns)
    except (pa.ArrowException, OSError) as error:
        if or_none:
            return None
        raise RunCorruptError(f"{path.name}: {_one_line(error)}") from None
    except RunCorruptError:
        if or_none:
            return None
        raise


def _sql(query: str, data: pa.Table, other: pa.Table | None = None) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("data", data)
        if other is not None:
            connection.register("other", other)
        try:
            return connection.execute(query).df()
        except duckdb.Error as error:
            raise RunCorruptError(f"table can't be read: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:160]
