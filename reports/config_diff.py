"""Which settings differ between runs: the proof that a sweep changed one factor, and the first table of a
comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PER_RUN = frozenset(
    {
        "port",
        "host",
        "base_url",
        "pid",
        "trace_dir",
        "trace_path",
        "log_path",
        "ipc_path",
        "seed",
        "nonce",
        "started_ns",
        "load_seconds",
    }
)
"""Settings that every fresh engine process has of its own; they differ by design and are no factor."""
ABSENT = "not set"


@dataclass(frozen=True)
class Difference:
    """One setting and its value under each label."""

    key: str
    values: dict[str, str]
    per_run: bool
    """True for ports, paths and the like."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``a.b`` → JSON text, so that values of any type compare."""
    out: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out.update(flatten(value, f"{name}."))
        else:
            out[name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return out


def differences(configs: Mapping[str, Mapping[str, Any] | None]) -> list[Difference]:
    """Settings whose values are not the same under all labels; real settings first, then those of one
    process.
    """
    flat = {label: flatten(config or {}) for label, config in configs.items()}
    keys = sorted({key for values in flat.values() for key in values})
    found = []
    for key in keys:
        values = {label: known.get(key, ABSENT) for label, known in flat.items()}
        if len(set(values.values())) > 1:
            found.append(Difference(key, values, key.rpartition(".")[2] in PER_RUN))
    return sorted(found, key=lambda d: (d.per_run, d.key))


def by_level(echoes: Mapping[str, list[Mapping[str, Any] | None]]) -> list[Difference]:
    """Like ``differences`` for levels of several runs each: a level's value is all values its runs had."""
    flat = {level: [flatten(echo or {}) for echo in runs] for level, runs in echoes.items()}
    keys = sorted({key for runs in flat.values() for run in runs for key in run})
    found = []
    for key in keys:
        seen = {level: sorted({run.get(key, ABSENT) for run in runs}) for level, runs in flat.items()}
        if len({value for values in seen.values() for value in values}) > 1:
            values = {level: _several(options) for level, options in seen.items()}
            found.append(Difference(key, values, key.rpartition(".")[2] in PER_RUN))
    return sorted(found, key=lambda d: (d.per_run, d.key))


def _several(options: list[str]) -> str:
    if len(options) <= 3:
        return ", ".join(options) if options else ABSENT
    return f"{options[0]} … {options[-1]} ({len(options)} values)"
