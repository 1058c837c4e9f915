"""A stored run request by request, as exporters need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.errors import InvalidInputError
from workbench.metrics.columns import measured
from workbench.runstore import Run


@dataclass(slots=True)
class RequestView:
    """One measured request: its row of ``requests.parquet``, and (ns, tokens) of its events with tokens."""

    row: dict[str, Any]
    events: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.row["status"] == "ok")

    def ms(self, stamp: str, since: str = "sent_ns") -> float | None:
        """Milliseconds from one stamp to another; None when either is missing."""
        begin, end = self.row.get(since), self.row.get(stamp)
        return None if begin is None or end is None else (end - begin) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        """Between events that follow each other."""
        return [(b[0] - a[0]) / 1e6 for a, b in zip(self.events, self.events[1:], strict=False)]

    @property
    def tpot_ms(self) -> float | None:
        """(last − first) / (tokens − tokens of the first event); None where that is 0."""
        row = self.row
        span = self.ms("last_token_ns", "first_token_ns")
        left = (row.get("output_tokens") or 0) - (row.get("first_event_tokens") or 0)
        return span / left if span is not None and left > 0 else None


def metrics_of(run: Run) -> dict[str, Any]:
    """Raises: InvalidInputError: the run has none."""
    metrics = run.metrics("window")
    if metrics is None:
        raise InvalidInputError("run", run.id, f"a run with metrics (its status is {run.manifest.status})")
    return metrics


def views(run: Run) -> list[RequestView]:
    """Every offered request in the order of the schedule; empty for a run without a requests table."""
    requests, chunks = run.arrow("requests"), run.arrow("chunks")
    if requests is None:
        return []
    found = {row["request_id"]: RequestView(row) for row in measured(requests).to_pylist()}
    if chunks is not None:
        columns = (chunks[name].to_pylist() for name in ("request_id", "recv_ns", "n_tokens"))
        for owner, at, tokens in zip(*columns, strict=True):
            if tokens and owner in found:
                found[owner].events.append((at, tokens))
    return list(found.values())


def wall_s(run: Run, monotonic_ns: int | None) -> float | None:
    """A stamp on the wall clock (seconds), by the pair of clocks taken at the run's start."""
    clock = run.manifest.clock
    if monotonic_ns is None or not clock:
        return None
    return (clock[0].wall_ns + monotonic_ns - clock[0].monotonic_ns) / 1e9
