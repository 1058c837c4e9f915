"""Goodput: requests that meet every objective, over everything that was offered."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.metrics.columns import Bools, Floats
from workbench.metrics.latency import Latencies
from workbench.slo import Slo


def goodput(
    slo: Slo, ok: Bools, latencies: Latencies, duration_s: float, among: Bools | None = None
) -> dict[str, Any]:
    """Judge requests; ``among`` selects them.

    A request is good when it succeeded and every metric is at most its bound. A metric that the answer's
    shape leaves undefined
    (``itl`` of an answer in one event) passes, and is counted in ``vacuous``. Failed, cancelled and shed
    requests are bad.
    """
    mine = np.ones(len(ok), np.bool_) if among is None else among
    good = ok & mine
    vacuous = np.zeros(len(ok), np.bool_)
    missed_by: dict[str, int] = {}
    for key, bound in slo.bounds:
        value = _values(key, latencies)
        undefined = np.isnan(value)
        missed = ok & mine & ~undefined & (value > bound)
        vacuous |= ok & mine & undefined
        missed_by[key] = int(missed.sum())
        good &= ~missed
    offered, met = int(mine.sum()), int(good.sum())
    return {
        "slo": str(slo),
        "offered": offered,
        "good": met,
        "good_s": met / duration_s if duration_s > 0 else None,
        "ratio": met / offered if offered else None,
        "missed_by": missed_by,
        "not_ok": int((mine & ~ok).sum()),
        "vacuous": int(vacuous.sum()),
    }


def _values(key: str, latencies: Latencies) -> Floats:
    return latencies.itl_per_request() if key == "itl" else latencies.per_request[key]
