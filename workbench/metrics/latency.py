"""Latencies by the definitions of docs/metrics.md, as samples over requests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from workbench.metrics.columns import Bools, Events, Floats, Ints, Requests
from workbench.metrics.stats import Sample, nearest_rank

ITL_SLO_QUANTILE = 0.95
"""The ``itl`` objective of one request bounds this nearest-rank quantile of its token-weighted gaps."""


class Latencies:
    """Latencies of the requests that succeeded; failures have none (they count in goodput and validity)."""

    def __init__(self, requests: Requests, events: Events) -> None:
        self._ok = requests.ok
        count = len(requests)
        same = events.owner[1:] == events.owner[:-1]
        later = np.flatnonzero(same) + 1
        use = later[self._ok[events.owner[later]]] if len(later) else later
        self._gap: Floats = events.time[use] - events.time[use - 1]
        self._owner: Ints = events.owner[use]
        self._tokens: Ints = events.tokens[use]
        blank = np.where(self._ok, 0.0, np.nan)
        decoded = requests.output_tokens - requests.first_event_tokens
        stall = np.full(count, np.nan)
        if len(self._gap):
            longest = np.full(count, -np.inf)
            np.maximum.at(longest, self._owner, self._gap)
            stall = np.where(np.isfinite(longest), longest, np.nan)
        self.per_request: dict[str, Floats] = {
            "ttft": requests.first - requests.sent + blank,
            "ttft_sched": requests.first - requests.intended + blank,
            "tpot": _ratio(requests.last - requests.first, decoded) + blank,
            "stall": stall + blank,
            "e2el": requests.last - requests.sent + blank,
            "e2el_sched": requests.last - requests.intended + blank,
        }
        """[n] ms each; NaN where undefined (tpot and stall of an answer that came in one event) or not ok."""

    def samples(self, among: Bools | None = None) -> dict[str, Sample]:
        """Every latency as a sample; ``among`` selects requests."""
        mine = np.ones(len(self._ok), np.bool_) if among is None else among
        out = {name: Sample.one_each(np.where(mine, v, np.nan)) for name, v in self.per_request.items()}
        gaps = mine[self._owner]
        gap, owner, tokens = self._gap[gaps], self._owner[gaps], self._tokens[gaps]
        out["icl"] = Sample(gap, owner, np.ones(len(gap), np.int64))
        out["itl"] = Sample(gap / tokens, owner, tokens)
        return out

    def itl_per_request(self) -> Floats:
        """[n] The nearest-rank p95 of each request's token-weighted gaps; NaN without gaps."""
        out = np.full(len(self._ok), np.nan)
        edges = np.flatnonzero(np.diff(self._owner, prepend=-1, append=-1))
        for start, end in pairwise(edges):
            part = slice(start, end)
            per_token = self._gap[part] / self._tokens[part]
            out[self._owner[start]] = nearest_rank(per_token, self._tokens[part], ITL_SLO_QUANTILE)
        return out


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """NaN where the denominator is not above 0."""
    out = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=out, where=denominator > 0)
    return out
