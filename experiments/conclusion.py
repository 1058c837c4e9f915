"""What the numbers say in words: the level to choose, its price, where the gain ends, and whether to trust
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis import block_table, counted
from experiments.design import level_text, same_level
from experiments.metric_info import HEADLINE, metric_info
from experiments.models import Boundary, Cell, Confirmation, Level, Ratio, Verdict
from experiments.spec import Load, SweepSpec
from experiments.stats import interval


@dataclass(frozen=True)
class Choice:
    """``best``: the level to choose, None when the data single none out; ``ties``: levels not told apart
    from it."""

    best: Any | None
    ties: list[Any]


def choose(spec: SweepSpec, levels: Sequence[Level], cells: Sequence[Cell]) -> Choice:
    """The BETTER level with the largest effect; the baseline when every other level is WORSE (or fails)."""
    info = metric_info(spec.primary_metric)
    sign = 1.0 if info is not None and info.higher_is_better else -1.0
    better = [level for level in levels if level.verdict is Verdict.BETTER]
    if not better:
        others = [level for level in levels if level.verdict is not Verdict.BASELINE]
        bad = (Verdict.WORSE, Verdict.FAILED)
        only_worse = all(level.verdict in bad for level in others)
        proven = any(level.verdict is Verdict.WORSE for level in others)
        return Choice(spec.baseline if only_worse and proven else None, [])
    top = max(better, key=lambda level: sign * (level.ratio[spec.primary_metric].point or 1.0))
    table = block_table(counted(cells), spec.primary_metric, spec.baseline)
    ties = []
    for level in better:
        if level is top:
            continue
        one, two = level_text(level.value), level_text(top.value)
        contrast = interval([row[one] - row[two] for row in table.levels if one in row and two in row])
        if contrast is None or contrast.low <= 0.0 <= contrast.high:
            ties.append(level.value)
    return Choice(top.value, ties)


def change_text(ratio: Ratio) -> str:
    """A ratio as a change: ``-38 % [-45, -30]``."""
    if ratio.point is None:
        return "no number"
    text = f"{_percent(ratio.point)} %"
    if ratio.low is None or ratio.high is None:
        return text + " (no interval)"
    return f"{text} [{_percent(ratio.low)}, {_percent(ratio.high)}]"


def _percent(ratio: float) -> str:
    """A bound as a change; beyond tenfold nobody needs the digits."""
    return f"{100 * (ratio - 1):+.0f}" if ratio <= 10 else ">+900"


def effect_text(mde: float | None) -> str:
    """Which effects a sweep could have seen, in words; a number only where one would act on it."""
    if mde is None:
        return "too few blocks to say which effects could be seen"
    return f"effects from {mde:.0%} up can be seen" if mde <= 1.0 else "too noisy to see any effect below 2x"


def conclude(
    spec: SweepSpec,
    levels: Sequence[Level],
    choice: Choice,
    confirmed: Confirmation | None,
    mde: float | None,
) -> str:
    """One sentence (or two): what to choose, what it brings and costs; or why the data do not say."""
    metric = spec.primary_metric
    by_text = {level_text(level.value): level for level in levels}
    if choice.best is None:
        verdicts = {level.verdict for level in levels} - {Verdict.BASELINE, Verdict.FAILED}
        if not verdicts:
            return f"No level of {spec.factor} could be compared with the baseline."
        if verdicts == {Verdict.EQUIVALENT}:
            return (
                f"{spec.factor} does not matter here: every level is within ±{spec.delta:.0%} of "
                f"{level_text(spec.baseline)} on {metric}."
            )
        seen = f" ({effect_text(mde)})"
        base = level_text(spec.baseline)
        return f"No level of {spec.factor} is proven better than {base} on {metric}{seen}: keep {base}."
    name = level_text(choice.best)
    if same_level(choice.best, spec.baseline):
        return f"Keep {spec.factor} {name}: every other level is worse on {metric}."
    best = by_text[name]
    effect = change_text(best.ratio[metric])
    text = f"Choose {spec.factor} {name}: {metric} {effect} against {level_text(spec.baseline)}"
    if confirmed is not None:
        again = confirmed.ratio[metric]
        text += f"; on fresh seeds {change_text(again)}"
        if confirmed.verdict is not Verdict.BETTER:
            text += f", where it is {confirmed.verdict}"
    price = [
        f"{other} {change_text(best.ratio[other])}"
        for other in HEADLINE
        if other != metric and other in best.ratio and best.ratio[other].verdict is Verdict.WORSE
    ]
    gain = [
        f"{other} {change_text(best.ratio[other])}"
        for other in HEADLINE
        if other != metric and other in best.ratio and best.ratio[other].verdict is Verdict.BETTER
    ]
    if gain:
        text += "; also better: " + ", ".join(gain)
    text += "; price: " + ", ".join(price) if price else "; no price seen on the other headline metrics"
    if choice.ties:
        text += f". Not told apart from it: {', '.join(map(level_text, choice.ties))}"
    return text + "."


def boundary_of_gain(
    spec: SweepSpec, levels: Sequence[Level], choice: Choice, load: Load | None, machine: dict[str, Any]
) -> Boundary:
    """Where the effect was seen, where it stops, and the conditions that the answer holds for."""
    groups: dict[Verdict, list[Any]] = {}
    for level in levels:
        groups.setdefault(level.verdict, []).append(level.value)
    rate = load.request_rate if load else None
    conditions = {
        "workload": spec.workload,
        "slo": spec.slo,
        "request_rate": rate,
        "num_prompts": load.num_prompts if load else None,
        "model": spec.model,
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
    }
    tested = ", ".join(map(level_text, spec.levels))
    parts = [f"Tested: {spec.factor} {tested} on {spec.workload}"]
    parts.append(f"at {rate:.3g} requests/s" if rate is not None else "with all requests at once")
    text = " ".join(parts) + f", {spec.model}, this machine."
    better, unknown = groups.get(Verdict.BETTER, []), groups.get(Verdict.INCONCLUSIVE, [])
    if better:
        text += f" Better than {level_text(spec.baseline)} at {', '.join(map(level_text, better))}."
        edge = level_text(choice.best)
        if not isinstance(choice.best, (str, bool)):
            if same_level(choice.best, spec.levels[0]) or same_level(choice.best, spec.levels[-1]):
                text += (
                    f" The best level {edge} is at the edge of the tested range: beyond, nothing is known."
                )
            else:
                text += f" The gain peaks inside the tested range, at {edge}."
    else:
        text += " No level gains on the primary metric."
    stops = [*groups.get(Verdict.EQUIVALENT, []), *groups.get(Verdict.WORSE, [])]
    if stops:
        text += f" No gain at {', '.join(map(level_text, stops))}."
    if unknown:
        text += f" Not known at {', '.join(map(level_text, unknown))}."
    text += " Other rates, lengths and machines were not tested."
    return Boundary(
        tested=spec.levels,
        better=better,
        equivalent=groups.get(Verdict.EQUIVALENT, []),
        worse=groups.get(Verdict.WORSE, []),
        unknown=[*unknown, *groups.get(Verdict.FAILED, [])],
        conditions=conditions,
        text=text,
    )
