"""Small pieces that every report shares: key figures, and settings as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, default=str, ensure_ascii=False)


def fact_list(part: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Settings as label and text, nested ones as ``outer.inner``; bytes are printed in GiB."""
    found = []
    for key, value in part.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found += fact_list(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for item in value:
                label = item.get("name") or value.index(item)
                found += fact_list(item, f"{name}[{label}].")
        else:
            found.append((name, _fact(str(key), value)))
    return found


def _fact(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return f"{value / 2**30:.1f} GiB"
    return setting(value)
