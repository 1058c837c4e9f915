"""``gate --self-test``: how noisy is this machine, how often would the gate be wrong here, how many pairs
does it need?

One revision is measured against itself. The series of runs is then resampled in stretches, so that its
drift and its likeness of neighbours survive, and thousands of gates are played on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.gate.decision import Rule, decide
from experiments.gate.models import GateVerdict, Side
from experiments.gate.scripts_runner import RunTurns
from experiments.gate.tier2 import METRICS, Pair, Pairs
from experiments.models import Frozen
from workbench.manifest import machine_info, utc_now

Floats = NDArray[np.float64]
REPLICATES = 2000
STRETCH = 10
"""Runs that are resampled together."""
SPIKE = 0.10
"""A run this far off the series' middle is a spike."""


class MetricNoise(Frozen):
    """Noise of one metric. Shares: 0.03 is 3 %."""

    name: str
    run_sd: float
    pair_sd: float
    """Of ln(second run / first) inside a pair."""
    autocorrelation: float | None
    """Of neighbouring runs; 0 is independent."""
    drift: float
    """Change of the middle from the first half to the second."""
    spikes: float
    """Share of runs more than 10 % off."""
    detectable: dict[int, float]
    """Pairs to the slow-down that would be caught 9 times in 10."""


class SelfTest(Frozen):
    """What ``--self-test`` stores in ``aa.json``."""

    schema_version: int = 1
    created: str
    folder: str
    pairs: int
    usable_pairs: int
    metrics: list[MetricNoise]
    false_alarm_rate: float
    """Share of resampled gates between equal revisions that FAIL, before the confirmation."""
    false_alarm_upper: float
    """Upper 95 % bound of it."""
    caught_ten_percent: float
    """Share of gates that FAIL when every metric is 10 % slower."""
    looks: list[int]
    """Recommended looks: the last is the fewest pairs that catch 10 % nine times in ten (at most 60)."""
    runs: list[dict[str, Any]]
    machine: dict[str, Any]

    @property
    def text(self) -> str:
        lines = [
            f"{m.name}: run to run {m.run_sd:.1%}, inside a pair {m.pair_sd:.1%}, drift {m.drift:+.1%}, "
            f"spikes {m.spikes:.0%}; "
            + ", ".join(f"{n} pairs see {effect:.0%}" for n, effect in m.detectable.items())
            for m in self.metrics
        ]
        lines.append(
            f"false alarms {self.false_alarm_rate:.2%} (below {self.false_alarm_upper:.2%}), a slow-down of "
            f"10 % everywhere caught {self.caught_ten_percent:.0%}; recommended: --pairs "
            + ",".join(map(str, self.looks))
        )
        return "\n".join(lines)


def self_test(
    side: Side,
    run: RunTurns,
    engine: Mapping[str, Any],
    pairs: int,
    *,
    control: Callable[[], float],
    seed: int = 0,
    say: Callable[[str], None] = lambda _text: None,
) -> SelfTest:
    """Measure ``side`` against itself in ``pairs`` pairs.

    Raises:
        Unusable: a run gave no answer.
    """
    base, head = side.model_copy(update={"name": "base"}), side.model_copy(update={"name": "head"})
    found = Pairs((base, head), run, control, engine, seed)
    while len(found.all) < pairs:
        found.add()
        say(f"pair {len(found.all)} of {pairs}")
    runs = [side for pair in found.all for side in _in_order(pair)]
    series = {name: np.log([run[name] for run in runs]) * sign for name, sign in METRICS.items()}
    return evaluate(series, side.folder, len(found.usable), runs)


def _in_order(pair: Pair) -> list[dict[str, float]]:
    """The base as measured, the head as the ratio of neighbouring turns puts it beside the base."""
    head = {name: pair.base[name] * ratio for name, ratio in pair.ratio.items()}
    return [pair.base, head] if pair.first == "base" else [head, pair.base]


def evaluate(series: Mapping[str, Floats], folder: str, usable: int, runs: list[dict[str, Any]]) -> SelfTest:
    """Noise figures and error rates of logs of runs in their order (two neighbours are a pair)."""
    rule = Rule()
    alarms = play(series, rule, 0.0, seed=1)
    caught = play(series, rule, 0.10, seed=2)
    looks = rule.looks
    if caught < 0.9:
        for last in (40, 50, 60):
            looks = (10, last // 2, last)
            if play(series, replace(rule, looks=looks), 0.10, seed=3, replicates=400) >= 0.9:
                break
    count = len(next(iter(series.values())))
    return SelfTest(
        created=utc_now(),
        folder=folder,
        pairs=count // 2,
        usable_pairs=usable,
        metrics=[_noise(name, logs) for name, logs in series.items()],
        false_alarm_rate=alarms,
        false_alarm_upper=_upper_bound(alarms, REPLICATES),
        caught_ten_percent=caught,
        looks=list(looks),
        runs=runs,
        machine=machine_info(),
    )


def play(
    series: Mapping[str, Floats], rule: Rule, slower: float, seed: int, replicates: int = REPLICATES
) -> float:
    """Share of simulated gates that FAIL when the head is ``slower`` on every metric."""
    rng = np.random.default_rng(seed)
    names = list(series)
    table = np.stack([series[name] - np.median(series[name]) for name in names])
    last = rule.looks[-1]
    failed = 0
    for _ in range(replicates):
        runs = _resample(table, 2 * last, rng).reshape(len(names), last, 2)
        flip = rng.random(last) < 0.5
        first, second = (
            np.where(flip, runs[:, :, 1], runs[:, :, 0]),
            np.where(flip, runs[:, :, 0], runs[:, :, 1]),
        )
        logs = second - first + math.log1p(slower)
        for look in rule.looks:
            verdict, _ = decide({n: logs[i, :look] for i, n in enumerate(names)}, rule, describe=False)
            if verdict is not GateVerdict.INCONCLUSIVE:
                failed += verdict is GateVerdict.FAIL
                break
    return failed / replicates


def _resample(table: Floats, runs: int, rng: np.random.Generator) -> Floats:
    """Stretches of neighbouring runs; all metrics of a run stay together."""
    length = min(STRETCH, table.shape[1])
    starts = rng.integers(0, table.shape[1] - length + 1, -(-runs // length))
    return np.concatenate([table[:, start : start + length] for start in starts], axis=1)[:, :runs]


def _noise(name: str, logs: Floats) -> MetricNoise:
    pairs = logs[: len(logs) // 2 * 2].reshape(-1, 2)
    pair_sd = float(np.std(pairs[:, 1] - pairs[:, 0], ddof=1)) if len(pairs) > 1 else math.nan
    centred = logs - logs.mean()
    total = float((centred**2).sum())
    half = len(logs) // 2
    return MetricNoise(
        name=name,
        run_sd=float(np.std(logs, ddof=1)),
        pair_sd=pair_sd,
        autocorrelation=float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else None,
        drift=math.expm1(float(np.median(logs[half:]) - np.median(logs[:half]))),
        spikes=float(np.mean(np.abs(logs - np.median(logs)) > math.log1p(SPIKE))),
        detectable={n: effect for n in (10, 20, 30) if (effect := _detectable(pair_sd, n)) is not None},
    )


def _detectable(pair_sd: float, pairs: int) -> float | None:
    from experiments.stats import minimum_detectable_effect

    rule = Rule()
    alpha = 2 * rule.fail_alpha / len(rule.looks) / len(METRICS)
    effect = minimum_detectable_effect(pair_sd, pairs, alpha=alpha)
    return None if effect is None else (1 + effect) * (1 + rule.tolerated) - 1


def _upper_bound(rate: float, count: int) -> float:
    """Clopper-Pearson, one-sided 95 %."""
    from scipy import stats

    hits = round(rate * count)
    return 1.0 if hits == count else float(stats.beta.ppf(0.95, hits + 1, count - hits))
