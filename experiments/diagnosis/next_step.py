"""The single-factor experiment that would confirm a finding, as a command line that can be run as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from experiments.design import level_text
from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.workload_file import stored_workload, workload_argument
from experiments.factors import load_factors

_FORWARD_SETTINGS = ("dtype", "quantization", "block_size", "attention_backend", "num_threads")
_NOT_FLAGS = frozenset({"model", "trace_dir", "seed", "served_model_name"})


def sweep_line(bundle: RunBundle, param: str, values: Sequence[Any], metric: str) -> str:
    """``workbench sweep`` over ``values`` (the first is the baseline) with this run's own load and settings.

    Args:
        param: a factor's name.
        values: levels, the one in force first.
        metric: what decides.
    """
    manifest, factor = bundle.manifest, load_factors()[param]
    words = ["workbench", "sweep", "--param", param, "--values", ",".join(map(level_text, values))]
    words += ["--baseline", level_text(values[0]), "--metric", metric]
    words += _load_words(bundle)
    if manifest.slo:
        words += ["--slo", manifest.slo]
    if manifest.target.requested.get("model") or manifest.target.model:
        words += ["--model", str(manifest.target.requested.get("model") or manifest.target.model)]
    for key, value in manifest.target.requested.items():
        if key in _NOT_FLAGS or key == factor.field or value is None or value == "auto":
            continue
        flag = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + key.replace("_", "-"))
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def forward_line(bundle: RunBundle) -> str:
    """``workbench forward`` with the settings of the run that a bare forward has."""
    target = bundle.manifest.target
    words = ["workbench", "forward"]
    for name in ("model", *_FORWARD_SETTINGS):
        value = target.requested.get(name, target.model if name == "model" else None)
        if value not in (None, "auto"):
            words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(words)


def _load_words(bundle: RunBundle) -> list[str]:
    """The same traffic, at the same rate."""
    words, spec = [], stored_workload(bundle)
    argument, rate = workload_argument(bundle), bundle.manifest.load.get("rate")
    if argument is not None:
        words += ["--workload", argument]
    if rate and (spec is None or spec.arrivals.open_rate):
        words += ["--request-rate", f"{rate:g}"]
    return words


def doublings(value: int, count: int = 3) -> list[int]:
    """``value``, twice that, four times ..."""
    return [value * 2**i for i in range(count)]
