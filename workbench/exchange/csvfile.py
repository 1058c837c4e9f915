"""A run as one CSV: a line per request, latencies in ms by the definitions of docs/metrics.md."""

from __future__ import annotations

import csv
import io
from typing import Any

from workbench.exchange.view import RequestView, metrics_of, views
from workbench.runstore import Run

COLUMNS = (
    "request_id",
    "index",
    "group",
    "worker",
    "session",
    "turn",
    "status",
    "http_status",
    "error_class",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "first_event_tokens",
    "intended_ms",
    "sent_ms",
    "close_ms",
    "ttft_ms",
    "ttft_sched_ms",
    "tpot_ms",
    "stall_ms",
    "e2el_ms",
    "e2el_sched_ms",
)
"""``*_ms`` before ``ttft`` are times after the schedule's origin."""


def requests_csv(run: Run) -> str:
    """Header and one line per offered request; what did not happen is empty.

    Raises:
        InvalidInputError: the run has no metrics.
    """
    origin = int(metrics_of(run)["window"]["start_ns"] or 0)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for view in views(run):
        writer.writerow(_line(view, origin))
    return out.getvalue()


def _line(view: RequestView, origin: int) -> dict[str, Any]:
    row = view.row
    times: dict[str, float | None] = {
        f"{name}_ms": None if row[f"{name}_ns"] is None else (row[f"{name}_ns"] - origin) / 1e6
        for name in ("intended", "sent", "close")
    }
    gaps = view.gaps_ms
    if view.ok:
        times |= {
            "ttft_ms": view.ms("first_token_ns"),
            "ttft_sched_ms": view.ms("first_token_ns", "intended_ns"),
            "tpot_ms": view.tpot_ms,
            "stall_ms": max(gaps) if gaps else None,
            "e2el_ms": view.ms("last_token_ns"),
            "e2el_sched_ms": view.ms("last_token_ns", "intended_ns"),
        }
    plain = {name: row.get(name) for name in COLUMNS if not name.endswith("_ms")}
    return plain | {name: None if value is None else f"{value:.6f}" for name, value in times.items()}
