"""The lives of a run's requests, a few at a time: what is alive in a window, one request, one moment.

Rows of all requests together would not fit a page: a run of 100,000 requests has more than 300,000 spans.
Only when each request's life begins and ends is kept; its events are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from reports.lifecycle import Span, client_spans, engine_spans
from reports.run_data import RunData

MAX_ALIVE = 150
"""Requests that a timeline shows: more would be thinner than a pixel row."""


@dataclass(frozen=True)
class Alive:
    """Requests that live in a window. ``alive`` counts all of them, ``spans`` are those of the first ones."""

    spans: list[Span]
    alive: int


class SpanSource:
    """Reads spans from the engine's events, or derives them from client stamps where there are none."""

    def __init__(
        self,
        data: RunData,
        requests: pd.DataFrame | None,
        steps: pd.DataFrame | None,
        lives: pd.DataFrame | None,
    ) -> None:
        """``requests``, ``steps`` and ``lives`` as ``data`` reads them."""
        self._data, self._requests, self._steps = data, requests, steps
        self.traced = lives is not None and len(lives) > 0
        self._lives = lives if lives is not None and self.traced else _client_lives(requests)
        ends = [self._lives["to_s"].max(), self._lives["from_s"].max()]
        ends += [steps["end_s"].max()] if steps is not None else []
        self._end_s = max((float(end) for end in ends if pd.notna(end)), default=0.0)

    @property
    def source(self) -> str:
        """Where the spans come from, in words."""
        if self.traced:
            return "engine events"
        return "no stamps" if self._requests is None else "client stamps"

    def all(self) -> list[Span]:
        """Spans of every request; only for runs that are known to be small."""
        return self._spans(None)

    def window(self, start_s: float, end_s: float, limit: int = MAX_ALIVE) -> Alive:
        """Whole lives of the first ``limit`` requests that live in the window, by their beginning."""
        lives = self._lives
        inside = lives[(lives["from_s"] <= end_s) & (lives["to_s"].fillna(self._end_s) >= start_s)]
        return Alive(self._spans(inside["request_id"].head(limit).tolist()), len(inside))

    def of(self, request_id: str) -> list[Span]:
        """All spans of one request."""
        return self._spans([request_id])

    def at(self, t_s: float) -> list[Span]:
        """Spans of every request that is alive at a moment."""
        return self._spans(self._alive_at(t_s))

    def events_at(self, t_s: float) -> pd.DataFrame | None:
        """All events, as ``RunData.events`` gives them, of the requests that are alive at a moment."""
        return self._data.events(self._alive_at(t_s)) if self.traced else None

    def _alive_at(self, t_s: float) -> list[str]:
        lives = self._lives
        here = lives[(lives["from_s"] <= t_s) & (lives["to_s"].fillna(self._end_s) >= t_s)]
        return list(here["request_id"])

    def _spans(self, ids: Sequence[str] | None) -> list[Span]:
        if self.traced:
            events = self._data.events(ids)
            if events is None or events.empty:
                return []
            low, high = float(events["t_s"].min()), float(events["t_s"].max())
            steps = self._steps
            if steps is not None and ids is not None:
                steps = steps[(steps["end_s"] >= low) & (steps["start_s"] <= high)]
            return engine_spans(events, steps, self._end_s)
        if self._requests is None:
            return []
        mine = self._requests
        return client_spans(mine if ids is None else mine[mine["request_id"].isin(list(ids))])


def _client_lives(requests: pd.DataFrame | None) -> pd.DataFrame:
    if requests is None:
        return pd.DataFrame({"request_id": [], "from_s": [], "to_s": []})
    lives = requests[["request_id", "sent_s", "close_s"]].dropna(subset=["sent_s"])
    return lives.set_axis(["request_id", "from_s", "to_s"], axis=1).sort_values("from_s")
