"""A stored run as a report or a dashboard page needs it: summary figures, figures to draw, facts to list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.errors import InvalidInputError
from reports.facts import Tile, fact_list
from reports.figures.compare import interval
from reports.lifecycle import Span
from reports.metric_names import metric_name, number, with_unit
from reports.pairing import level_key
from reports.run_data import RunData
from reports.spans import Alive, SpanSource
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest
from workbench.metrics import flat
from workbench.slo import parse_slo

LATENCY_ROWS: tuple[str, ...] = ("ttft", "ttft_sched", "itl", "tpot", "stall", "e2el", "e2el_sched")
STATISTICS: tuple[str, ...] = ("mean", "p50", "p90", "p99", "max")


@dataclass(frozen=True)
class Tables:
    """The tables of a run; None where the run has none, with the reason in ``problems``."""

    data: RunData
    requests: pd.DataFrame | None
    gaps: pd.DataFrame | None
    steps: pd.DataFrame | None
    telemetry: pd.DataFrame | None
    lives: SpanSource
    problems: list[str]

    @classmethod
    def read(cls, data: RunData) -> Tables:
        """Read all; a table that can't be read is left out and named."""
        found: dict[str, pd.DataFrame | None] = {}
        problems: list[str] = []
        for name in ("requests", "gaps", "steps", "telemetry", "lives"):
            try:
                found[name] = getattr(data, name)()
            except RunCorruptError as error:
                found[name] = None
                problems.append(str(error))
        lives = SpanSource(data, found["requests"], found["steps"], found.pop("lives"))
        return cls(data, **found, lives=lives, problems=list(dict.fromkeys(problems)))

    @property
    def traced(self) -> bool:
        """Are there events of the engine?"""
        return self.lives.traced

    @property
    def events(self) -> pd.DataFrame | None:
        """All events of the engine, read anew: ``lives`` reads only those that are needed."""
        return self.data.events()

    def spans(self) -> tuple[list[Span], str]:
        """Phases of all requests and where they come from. For runs that are known to be small: ``lives``
        gives those of a window.
        """
        return self.lives.all(), self.lives.source

    def alive(self, window: tuple[float, float] | None = None) -> Alive:
        """What a timeline of ``window`` (seconds; None: the whole run) shows."""
        start, end = window or (-math.inf, math.inf)
        return self.lives.window(start, end)

    def duration_s(self) -> float:
        """From the first request to the last stamp of any table, in seconds."""
        ends = [
            float(frame[column].max())
            for frame, column in ((self.requests, "close_s"), (self.steps, "end_s"))
            if frame is not None and frame[column].notna().any()
        ]
        return max(ends, default=0.0)


def display_name(manifest: Manifest) -> str:
    """The run's name, else its level in its sweep, else its workload, else its id."""
    if manifest.name:
        return manifest.name
    if manifest.sweep:
        return f"Level {level_key(manifest.sweep.level)}, block {manifest.sweep.block}"
    return str(manifest.workload.get("name") or manifest.id)


def slo_bounds(metrics: Mapping[str, Any] | None, manifest: Manifest) -> dict[str, float]:
    """SLO bounds in ms by metric; empty without an SLO or with one that can't be read."""
    text = ((metrics or {}).get("goodput") or {}).get("slo") or manifest.slo
    try:
        return dict(parse_slo(str(text)).bounds) if text else {}
    except InvalidInputError:
        return {}


def bucket(duration_s: float) -> float:
    """A round bucket (seconds) that gives some 100 points over ``duration_s``."""
    return next((b for b in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0) if duration_s / b <= 150), 60.0)


def tiles(metrics: Mapping[str, Any] | None) -> list[Tile]:
    """The figures at the top of a run."""
    if not metrics:
        return []
    values = flat(metrics)
    found = []
    for key in ("ttft_p50", "itl_p50", "itl_p99", "output_tok_s", "goodput_ratio"):
        low, high = interval(metrics, key)
        detail = f"95 % interval {number(low)} to {number(high)}" if low is not None else ""
        if key == "itl_p99" and ((metrics.get("latency") or {}).get("itl") or {}).get("p99_flagged"):
            detail = "too few samples: an indication"
        if key == "goodput_ratio":
            detail = str((metrics.get("goodput") or {}).get("slo") or "no SLO was set")
        found.append(Tile(metric_name(key).label, with_unit(key, values.get(key)), detail))
    ok, offered = values.get("ok"), values.get("offered")
    found.append(Tile("Requests", f"{number(ok)} of {number(offered)}", "finished with at least one token"))
    return found


def latency_table(metrics: Mapping[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    """(label, summary) per latency that has samples."""
    found = (metrics or {}).get("latency") or {}
    return [
        (metric_name(f"{name}_").label.strip(), found[name])
        for name in LATENCY_ROWS
        if isinstance(found.get(name), Mapping) and found[name].get("n")
    ]


def facts(manifest: Manifest) -> list[tuple[str, list[tuple[str, str]]]]:
    """Environment of a run: titles and label/text pairs."""
    about = {
        "created": manifest.created,
        "status": manifest.status,
        "tags": ", ".join(manifest.tags) or "none",
        "tool": manifest.tool_version,
        "commit": (manifest.git or {}).get("commit") or "unknown",
        "seed": manifest.seed,
        "target": f"{manifest.target.kind} {manifest.target.base_url or ''}".strip(),
    }
    parts: list[tuple[str, Mapping[str, Any]]] = [
        ("Run", about),
        ("Machine", manifest.machine),
        ("Workload", manifest.workload),
        ("Load", manifest.load),
        ("Requested settings", manifest.target.requested),
        ("Records dropped", manifest.drops),
    ]
    return [(title, fact_list(part)) for title, part in parts if part]
