"""Stored runs side by side: ratios with intervals, and what else differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidInputError
from workbench.metrics.columns import read_events, read_requests
from workbench.metrics.contrast import Contrast, contrasts
from workbench.metrics.flat import LATENCIES, flat
from workbench.metrics.latency import Latencies
from workbench.metrics.stats import RESAMPLED, Sample
from workbench.records import CHUNKS, REQUESTS
from workbench.runstore import Run

RATES = ("output_tok_s", "total_tok_s", "request_s", "goodput_s", "goodput_ratio")

_VOLATILE = frozenset({"trace_dir", "load_seconds", "model_config", "eos_token_ids"})
"""Facts in an echo that are no settings."""


def compare_runs(baseline: Run, other: Run) -> dict[str, Any]:
    """``other`` over ``baseline``: ``{"run", "ratios": {name: {"point", "low", "high"}}, "differences":
    {...}, "warnings": [...]}``.

    Names are flat (``ttft_p50``). Rates have no interval: one run gives one value of them.

    Raises:
        InvalidInputError: a run has no metrics.
    """
    first, second = _values(baseline), _values(other)
    ratios: dict[str, dict[str, float | None]] = {}
    samples = (_samples(baseline), _samples(other))
    for latency in LATENCIES:
        for contrast in contrasts(samples[0][latency], samples[1][latency]):
            ratios[f"{latency}_{contrast.statistic}"] = _interval(contrast)
    points = [f"{latency}_{statistic}" for latency in LATENCIES for statistic in RESAMPLED]
    for name in (*points, *RATES):
        before, after = first.get(name), second.get(name)
        # An imported summary has no requests to resample: a ratio without an interval is all there is.
        if name not in ratios and before and after is not None:
            ratios[name] = {"point": after / before, "low": None, "high": None}
    differing = differences(baseline, other)
    return {
        "run": other.id,
        "ratios": ratios,
        "differences": differing,
        "warnings": _warnings(baseline, other, differing),
    }


def differences(first: Run, second: Run) -> dict[str, list[Any]]:
    """Settings, load, workload and machine facts that are not the same: name → [first, second]."""
    a, b = _facts(first), _facts(second)
    return {
        name: [a.get(name), b.get(name)] for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)
    }


def _facts(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    settings = manifest.target.echo if manifest.target.echo is not None else manifest.target.requested
    facts = {f"engine.{k}": v for k, v in settings.items() if k not in _VOLATILE}
    facts |= {f"load.{k}": v for k, v in manifest.load.items() if k not in ("features", "deadlines")}
    facts |= {f"machine.{k}": v for k, v in manifest.machine.items()}
    facts |= {
        "workload": manifest.workload_sha256[:12],
        "seed": manifest.seed,
        "model": manifest.target.model,
    }
    facts |= {"tool_version": manifest.tool_version, "commit": (manifest.git or {}).get("commit")}
    return facts


def _warnings(first: Run, second: Run, differing: Mapping[str, list[Any]]) -> list[str]:
    warnings = []
    for run in (first, second):
        validity = (run.metrics() or {}).get("validity") or {}
        if not validity.get("valid"):
            warnings.append(f"{run.id} is invalid: {'; '.join(validity.get('reasons', [])) or 'no verdict'}")
    if len(differing) > 1:
        warnings.append(
            f"{len(differing)} things differ ({', '.join(differing)}): no ratio can be credited to one"
        )
    if not differing:
        warnings.append("nothing differs in what is recorded: this is a repetition (A/A)")
    return warnings


def _values(run: Run) -> dict[str, float | None]:
    metrics = run.metrics()
    if metrics is None:
        raise InvalidInputError("run", run.id, f"a run with metrics (its status is {run.manifest.status})")
    return flat(metrics)


def _samples(run: Run) -> dict[str, Sample]:
    """Of every latency; empty ones where the run has no requests, or no events for it."""
    requests, chunks = run.arrow("requests"), run.arrow("chunks")
    requests = requests if requests is not None else REQUESTS.empty_table()
    chunks = chunks if chunks is not None else CHUNKS.empty_table()
    origin = int(((run.metrics() or {}).get("window") or {}).get("start_ns") or 0)
    rows = read_requests(requests, origin)
    return Latencies(rows, read_events(chunks, requests, origin)).samples()


def _interval(contrast: Contrast) -> dict[str, float | None]:
    return {"point": contrast.point, "low": contrast.low, "high": contrast.high}
