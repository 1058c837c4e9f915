"""Small pieces that every report shares: key figures, and settings as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.metric_names import number


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, the figure, and its small print."""

    label: str
    value: str
    detail: str = ""


def setting(value: Any) -> str:
    """A configuration value as one line of text."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, default=str, ensure_ascii=False)


def fact_list(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as label and text; bytes are printed in GiB."""
    return [(str(key), _fact(str(key), value)) for key, value in part.items()]


def _fact(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return f"{value / 2**30:.1f} GiB"
    return number(value) if isinstance(value, float) else setting(value)
