"""The flat metrics (``ttft_p50`` …): what they are called on an axis, their unit, which way is better, how to
print one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from experiments.metric_info import HEADLINE, metric_info


@dataclass(frozen=True)
class MetricName:
    """A metric as people read it."""

    key: str
    label: str
    unit: str
    """Empty for a pure number."""
    lower_is_better: bool | None
    """None: neither way."""

    @property
    def axis(self) -> str:
        """Axis title: label with unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_LABELS = {
    "ttft": "TTFT",
    "ttft_sched": "TTFT from schedule",
    "itl": "ITL",
    "icl": "Inter-chunk",
    "tpot": "TPOT",
    "stall": "Longest stall",
    "e2el": "E2E latency",
    "e2el_sched": "E2E from schedule",
    "output_tok_s": "Output throughput",
    "input_tok_s": "Input throughput",
    "total_tok_s": "Total throughput",
    "request_s": "Requests",
    "goodput_s": "Goodput rate",
    "goodput_ratio": "Goodput",
    "cached_tokens": "Cached prompt tokens",
}


def metric_name(key: str) -> MetricName:
    """Label, unit and direction of a flat metric; an unknown key is shown as it is. ``chat/ttft_p50`` names
    its group.
    """
    group, _, base = key.rpartition("/")
    prefix = f"{group}: " if group else ""
    info = metric_info(key)
    if base in _LABELS:
        label = _LABELS[base]
    else:
        stem, _, statistic = base.rpartition("_")
        label = f"{_LABELS[stem]} {statistic}" if stem in _LABELS else base
    if info is None:
        return MetricName(key, prefix + label, "tokens" if base.endswith("tokens") else "", None)
    return MetricName(key, prefix + label, info.unit, not info.higher_is_better)


def number(value: object, missing: str = "–") -> str:
    """A figure with three significant digits and no exponent; missing or non-finite is a dash, never 0."""
    if value is None or isinstance(value, bool | str):
        return missing if value is None else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return missing
    if not isinstance(value, int | float):
        return missing if pd.isna(value) else number(float(value))  # type: ignore[call-overload,arg-type]
    magnitude = abs(value)
    if magnitude >= 1000 or (isinstance(value, int) and magnitude >= 100):
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.0f}"
    if isinstance(value, int):
        return str(value)
    if magnitude >= 10:
        return f"{value:.1f}"
    if magnitude >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value else "0"


def with_unit(key: str, value: object) -> str:
    """Value and unit, such as ``412 ms``; a share is printed in percent."""
    name = metric_name(key)
    text = number(value)
    if text == "–":
        return text
    if name.unit == "share" and isinstance(value, int | float):
        return f"{100 * value:.1f} %"
    return f"{text} {name.unit}" if name.unit and name.unit != "tokens" else text


def change(ratio: float | None) -> str:
    """A ratio as a signed change: 1.08 → ``+8.0 %``, from tenfold on as ``×12``; a minus is a real minus."""
    if ratio is None or not math.isfinite(ratio):
        return "–"
    if ratio >= 10:
        return f"×{ratio:.3g}"
    percent = 100 * (ratio - 1)
    digits = 0 if abs(percent) >= 100 else 1
    text = f"{percent:+.{digits}f}"
    if not float(text):
        text = text[1:]
    return text.replace("-", "−") + " %"


def share(value: float | None) -> str:
    """A share in percent: 0.031 → ``3.1 %``; from tenfold on without decimals."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:,.0f} %" if value >= 10 else f"{100 * value:.1f} %"


__all__ = ["HEADLINE", "MetricName", "change", "metric_name", "number", "share", "with_unit"]
