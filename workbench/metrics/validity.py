"""Rules by which a run declares itself invalid, with reasons a reader can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAG_FLOOR_MS = 10.0
LAG_SHARE = 0.05
ACHIEVED_SHARE = 0.98


def validity(
    counts: Mapping[str, Any], load: Mapping[str, Any], ttft_p50: float | None, further: Sequence[str]
) -> dict[str, Any]:
    """Apply the rules.

    Args:
        counts: the ``counts`` part of the metrics.
        load: the ``load`` part.
        ttft_p50: ms.
        further: reasons found elsewhere (echo differs from the request, interrupted ...).
    """
    reasons = list(further)
    failed, offered = counts["failed"], counts["offered"]
    if counts["ok"] == 0:
        reasons.append("no request succeeded")
    if failed:
        classes = ", ".join(f"{name}: {number}" for name, number in sorted(counts["errors"].items()))
        reasons.append(f"{failed} of {offered} requests failed ({classes})")
    lag, bound = load["lag_p99_ms"], max(LAG_FLOOR_MS, LAG_SHARE * (ttft_p50 or 0.0))
    if lag is not None and lag > bound:
        reasons.append(
            f"the client was late: dispatch lag p99 {lag:.1f} ms, over {bound:.1f} ms "
            f"(the larger of {LAG_FLOOR_MS:g} ms and {LAG_SHARE:.0%} of median ttft)"
        )
    planned, sent = load["offered_rate"], load["achieved_rate"]
    if load["loop"] == "open" and planned and sent and sent < ACHIEVED_SHARE * planned:
        reasons.append(
            f"the schedule was not kept: {sent:.2f} requests/s sent of {planned:.2f} planned "
            f"(under {ACHIEVED_SHARE:.0%})"
        )
    return {"valid": not reasons, "reasons": reasons}
