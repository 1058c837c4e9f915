"""From what the user typed to a :class:`SweepSpec`: every value checked before anything starts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from experiments.calibrate import FEWEST_BLOCKS, affordable_runs
from experiments.design import level_text, same_level, thin
from experiments.design_options import parse_across, pilot_pairs, search_design
from experiments.experiment_file import ExperimentFile
from experiments.factors import Factor, FactorExpectation, get_factor, load_factors, parse_values
from experiments.metric_info import metric_info
from experiments.spec import SweepSpec, parse_duration, parse_rate, parse_share
from experiments.targets import READY_S, TargetChoice, choose_target, server_command
from workbench.slo import parse_slo
from workbench.targets.command import placeholders
from workloads import Arrivals, WorkloadError, load_workload

DEFAULT_BUDGET_S = 540.0
MOST_BLOCKS = 12
"""Of a sweep that is bounded by its budget only."""
FEWEST_LEVELS = 3
"""That a short budget leaves of a factor's own levels, the baseline among them."""


@dataclass(frozen=True)
class SweepRequest:
    """The command line of ``workbench sweep``, unchecked; None where nothing was given."""

    param: str
    values: str | None = None
    baseline: str | None = None
    blocks: int | None = None
    budget: str | None = None
    metric: str | None = None
    delta: str = "5%"
    slo: str | None = None
    workload: str | None = None
    request_rate: str | None = None
    num_prompts: int | None = None
    utilisation: str | None = None
    confirm: int = 3
    seed: int | None = None
    factors: Path | None = None
    target: str | None = None
    target_command: str | None = None
    target_args: str | None = None
    served_model_name: str | None = None
    pilot: int | None = None
    across: str | None = None
    search: str | None = None
    storage: str | None = None
    question: str | None = None
    hypothesis: tuple[FactorExpectation, ...] | None = None
    """Of an experiment file, in the place of the factor's."""


def make_spec(request: SweepRequest, engine: Mapping[str, Any]) -> SweepSpec:
    """Check everything and fix the question.

    Args:
        engine: engine settings given by the user (fields of :class:`EngineConfig`).

    Raises:
        InvalidInputError: the first value that can't be used, with what is allowed.
    """
    factor = get_factor(request.param, load_factors(*([request.factors] if request.factors else [])))
    target = choose_target(
        request.target, request.target_command, request.target_args, request.served_model_name
    )
    check_side(factor, target, engine)
    if factor.field in engine:
        flag = "--" + factor.field.replace("_", "-")
        raise InvalidInputError(
            factor.field,
            engine[factor.field],
            f"no {flag} beside --param {factor.name}; set it with --baseline",
        )
    baseline = factor.parse(request.baseline) if request.baseline is not None else factor.baseline
    blocks, budget_s = _extent(request)
    if request.values is not None:
        levels = factor.order([*parse_values(factor, request.values), baseline])
    else:
        levels = _fit(factor.order([*factor.levels, baseline]), baseline, budget_s)
    if len(levels) < 2:
        raise InvalidInputError(
            "values", request.values, f"at least one level beside the baseline {level_text(baseline)}"
        )
    search_range = None
    if request.search == "tpe":
        levels, search_range = search_design(factor, levels, baseline)
    elif request.search not in (None, "levels"):
        raise InvalidInputError("search", request.search, "levels or tpe")
    settings = {**factor.fixed, **engine}
    if target.kind == "attach":
        settings = {}
    if target.name != "command":
        factor.check(levels, settings)
    model = str(engine.get("model", EngineConfig.model_fields["model"].default))
    settings = {name: value for name, value in settings.items() if name != "model"}
    if target.kind == "command":
        for level in levels:  # a flag or a placeholder that is missing costs a line, not a run
            names = {factor.name: level, factor.field: level, "value": level}
            own = {factor.field: level} if factor.side == "engine" else {}
            server_command(target, model, {**settings, **own}, names)
    metric = request.metric or factor.primary
    if metric_info(metric) is None:
        raise InvalidInputError(
            "metric",
            metric,
            "a metric such as ttft_p50, itl_p99, output_tok_s, goodput_ratio or chat/ttft_p50",
        )
    try:
        workload = load_workload(request.workload or factor.workload)
    except WorkloadError as error:
        raise InvalidInputError(error.field, error.value, error.allowed) from None
    slo = request.slo if request.slo is not None else (workload.slo or "")
    if slo:
        slo = str(parse_slo(slo, "slo"))
    elif "goodput" in metric:
        raise InvalidInputError(
            "metric", metric, f"used with --slo: the workload {workload.name} brings none"
        )
    open_rate = workload.arrivals.open_rate
    if request.request_rate is not None and not open_rate:
        raise InvalidInputError(
            "request-rate",
            request.request_rate,
            f"left out: {workload.name} has {workload.arrivals.kind} arrivals",
        )
    rate = parse_rate(request.request_rate) if request.request_rate is not None else workload.arrivals.rate
    if factor.field == "max_concurrency" and factor.side == "load":
        workload = workload.model_copy(update={"arrivals": Arrivals(kind="closed", max_concurrency=1)})
        open_rate = False
    if factor.field == "request_rate" and factor.side == "load":
        if not open_rate:
            raise InvalidInputError("workload", workload.name, "a workload with arrivals at a rate")
        rate = float(baseline)
    return SweepSpec(
        question=request.question
        or f"Which {factor.name} is best for {workload.name} on this machine, judged by {metric}?",
        factor=factor.name,
        field=factor.field,
        levels=levels,
        baseline=next(level for level in levels if same_level(level, baseline)),
        primary_metric=metric,
        hypothesis=list(factor.expect if request.hypothesis is None else request.hypothesis),
        changes_output=factor.changes_output,
        delta=parse_share("delta", request.delta),
        slo=slo,
        workload=request.workload or factor.workload,
        workload_spec=workload.model_dump(mode="json"),
        request_rate=rate if open_rate else None,
        all_at_once=not open_rate,
        num_prompts=_at_least("num-prompts", request.num_prompts, 2),
        utilisation=(
            parse_share("utilisation", request.utilisation)
            if request.utilisation is not None
            else workload.arrivals.utilisation or 0.7
        ),
        blocks=blocks,
        budget_s=budget_s,
        confirm_blocks=_at_least("confirm", request.confirm, 0) or 0,
        pilot_pairs=pilot_pairs(request.pilot, len(levels) + 1, blocks, budget_s),
        across=parse_across(request.across),
        search="tpe" if search_range is not None else "levels",
        search_range=search_range,
        storage=request.storage,
        seed=seed if (seed := _at_least("seed", request.seed, 0)) is not None else secrets.randbelow(2**31),
        model=model,
        side=factor.side,
        target=target,
        ready_timeout_s=READY_S if target.kind == "command" else 120.0,
        engine=settings,
        fixed={
            name: value for name, value in factor.fixed.items() if name not in engine and name in settings
        },
    )


def request_of_file(file: ExperimentFile) -> tuple[SweepRequest, dict[str, Any]]:
    """The request that an experiment file makes, and the engine settings in it."""

    def text(value: object) -> str | None:
        return None if value is None else level_text(value)

    given: dict[str, Any] = {
        "values": None if file.levels is None else ",".join(map(level_text, file.levels)),
        "baseline": text(file.baseline), "request_rate": text(file.request_rate),
        "utilisation": text(file.utilisation), "blocks": file.blocks, "budget": file.budget,
        "metric": file.metric, "delta": file.delta, "slo": file.slo, "workload": file.workload,
        "num_prompts": file.num_prompts, "confirm": file.confirm, "pilot": file.pilot, "across": file.across,
        "search": file.search, "seed": file.seed, "target": file.target, "target_args": file.target_args,
        "target_command": file.target_command, "question": file.question,
        "hypothesis": None if file.hypothesis is None else tuple(file.hypothesis),
    }  # fmt: skip
    known = {name: value for name, value in given.items() if value is not None}
    return SweepRequest(param=file.factor, **known), dict(file.engine or {})


def check_side(factor: Factor, target: TargetChoice, engine: Mapping[str, Any]) -> None:
    """A factor needs a target that it can be set on.

    Raises:
        InvalidInputError: it can't, with the way out.
    """
    if target.kind == "attach":
        if factor.side != "load":
            way_out = "use --target-command, or a factor of the load (request_rate, max_concurrency)"
            raise InvalidInputError("target", target.name, f"a target started for each level; {way_out}")
        if engine:
            name, value = next(iter(engine.items()))
            raise InvalidInputError(name, value, "no engine settings with a server that is already running")
    if target.name == "command" and factor.side != "load":
        known = {factor.name, factor.field, "value"}
        if not known & placeholders(target.command):
            allowed = f"a command with {{{factor.name}}} in it"
            raise InvalidInputError("target-command", target.command, allowed)
    if factor.side == "command" and target.name != "command":
        raise InvalidInputError("param", factor.name, "swept with --target-command: it is a setting of yours")


def _fit(levels: list[Any], baseline: Any, budget_s: float | None) -> list[Any]:
    """As many of the factor's own levels as a short budget can measure in :data:`FEWEST_BLOCKS` blocks.

    An interval needs blocks more than the picture needs levels: both ends and the baseline stay.
    """
    if budget_s is None:
        return levels
    room = max(FEWEST_LEVELS, affordable_runs(budget_s) // FEWEST_BLOCKS - 1)
    return thin(levels, baseline, room)


def _extent(request: SweepRequest) -> tuple[int, float | None]:
    """Most blocks and the budget. Neither given: nine minutes; only blocks: as long as they take."""
    blocks = _at_least("blocks", request.blocks, 1)
    if request.budget is not None:
        return blocks or MOST_BLOCKS, parse_duration(request.budget)
    return (blocks, None) if blocks is not None else (MOST_BLOCKS, DEFAULT_BUDGET_S)


def _at_least(name: str, value: int | None, least: int) -> int | None:
    if value is not None and value < least:
        raise InvalidInputError(name, value, f"at least {least}")
    return value
