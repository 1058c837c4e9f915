"""The commands of this package: ``workbench sweep`` and ``workbench factors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from experiments.models import SweepResult
    from experiments.request import SweepRequest
    from experiments.spec import SweepSpec

EXIT_USAGE = 2
EXIT_UNUSABLE = 3
EXIT_INTERRUPTED = 130
RunsDir = Annotated[
    Path | None,
    typer.Option(help="The run store (default runs/, or WORKBENCH_RUNS).", rich_help_panel="Output"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel="Output")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this package to ``app``."""
    from engine.config import EngineConfig
    from engine.server.flags import add_flags
    from experiments.capacity.command import capacity
    from experiments.diagnosis.command import diagnose
    from experiments.gate.command import gate

    flags = add_flags(EngineConfig, skip=("seed", "trace_dir", "served_model_name"), panels=("Engine",))
    app.command("sweep")(flags(sweep))
    app.command("factors")(factors)
    app.command("capacity")(flags(capacity))
    app.command("diagnose")(diagnose)
    app.command("gate")(gate)


def factors(
    name: Annotated[
        str | None, typer.Argument(help="Explain this factor; all of them when left out.")
    ] = None,
    as_json: AsJson = False,
    factor_file: Annotated[
        Path | None, typer.Option("--factors", help="A TOML file with factors of your own.")
    ] = None,
) -> None:
    """What a sweep can change: mechanism, levels, what to expect, and the names in vLLM and SGLang."""
    from rich.console import Console

    from engine.errors import InvalidInputError
    from experiments.factors import get_factor, load_factors
    from experiments.views import factor_json, factor_panel, factor_table

    try:
        known = load_factors(*([factor_file] if factor_file else []))
        chosen = get_factor(name, known) if name is not None else None
    except InvalidInputError as error:
        _fail(str(error))
    if as_json:
        found = factor_json(chosen) if chosen else {"factors": [factor_json(f) for f in known.values()]}
        typer.echo(json.dumps(found))
    else:
        Console(highlight=False).print(factor_panel(chosen) if chosen else factor_table(known))


def sweep(
    file: Annotated[
        str | None, typer.Argument(help="An experiment file, or the name of a shipped one.")
    ] = None,
    param: Annotated[str | None, typer.Option(help="The factor to change; see: workbench factors.")] = None,
    values: Annotated[
        str | None, typer.Option(help="Levels, separated by commas (default: the factor's).")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Level to compare with (default: the engine's).")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Blocks: every level once, the baseline twice. Alone: no budget.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Wall time, such as 3m or 1h30m (default 9m); stops at block ends.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric that decides (default: the factor's).")] = None,
    delta: Annotated[
        str | None, typer.Option(help="Effect of interest: smaller ones do not matter (default 5%).")
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Objectives in ms, 'ttft:2000 itl:100' (default: the workload's).")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Preset or .toml file (default: the factor's).")
    ] = None,
    request_rate: Annotated[
        str | None, typer.Option(help="Requests per second for all levels (default: calibrated).")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="Requests a run (default: fills the budget).")
    ] = None,
    utilisation: Annotated[
        str | None, typer.Option(help="Share of the calibrated capacity (default: the workload's, else 70%).")
    ] = None,
    confirm: Annotated[
        int | None,
        typer.Option(help="Pairs that measure the winner again on fresh seeds (default 3); 0: none."),
    ] = None,
    pilot: Annotated[
        int | None,
        typer.Option(help="Pairs of the baseline with itself beforehand (default: a tenth of the runs)."),
    ] = None,
    across: Annotated[
        str | None,
        typer.Option(help="Follow the gain along an axis: rate=1,2,4 or workload=chat,random."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="levels (each in every block), or tpe (Optuna proposes the next).")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Of Optuna's study, a database URL (default: a journal file).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of orders and workloads (default: drawn, and recorded).")
    ] = None,
    factor_file: Annotated[
        Path | None, typer.Option("--factors", help="A TOML file with factors of your own.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="builtin, vllm, sglang, or the URL of a server.", rich_help_panel="Target"),
    ] = None,
    target_command: Annotated[
        str | None,
        typer.Option(
            help="Start this instead, such as 'myserver --chunk {chunk_size} --port {port}'.",
            rich_help_panel="Target",
        ),
    ] = None,
    target_args: Annotated[
        str | None,
        typer.Option(help="Further flags for --target vllm or sglang.", rich_help_panel="Target"),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(help="Name in the API (default: the first listed).", rich_help_panel="Target"),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the schedule and its cost; run nothing.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="SWEEP", help="Go on with a sweep (id or folder) that was cut.")
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
    **engine: Any,
) -> None:
    """Change one setting, hold everything else, and say which level is better, worse or the same."""
    from engine.errors import InvalidInputError
    from experiments.request import make_spec

    asked: dict[str, Any] = {
        "param": param, "values": values, "baseline": baseline, "blocks": blocks, "metric": metric,
        "delta": delta, "slo": slo, "workload": workload, "request_rate": request_rate,
        "num_prompts": num_prompts, "utilisation": utilisation, "confirm": confirm, "pilot": pilot,
        "across": across, "search": search, "storage": storage, "seed": seed, "factors": factor_file,
        "target": target, "target_command": target_command, "target_args": target_args,
        "served_model_name": served_model_name,
    }  # fmt: skip
    try:
        if resume is not None:
            _refuse_changes({"file": file, **asked, **engine})
            result = _resume(resume, budget, runs_dir)
        else:
            request, settings = _request(file, {**asked, "budget": budget}, engine)
            spec = make_spec(request, settings)
            if plan:
                _show_plan(spec, as_json)
                return
            result = _start(spec, runs_dir)
    except InvalidInputError as error:
        _fail(str(error))
    _finish(result, as_json)


def _request(
    file: str | None, asked: dict[str, Any], engine: dict[str, Any]
) -> tuple[SweepRequest, dict[str, Any]]:
    """The file's request with what the command line says in its place."""
    from dataclasses import replace

    from engine.errors import InvalidInputError
    from experiments.experiment_file import read_experiment
    from experiments.request import SweepRequest, request_of_file

    given = {name: value for name, value in asked.items() if value is not None}
    if file is None:
        if "param" not in given:
            raise InvalidInputError("param", None, "the name of a factor; see: workbench factors")
        return SweepRequest(**given), engine
    request, settings = request_of_file(read_experiment(file))
    if given.get("param", request.param) != request.param:
        raise InvalidInputError("param", given["param"], f"{request.param}, as in {file}")
    return replace(request, **given), {**settings, **engine}


def _refuse_changes(given: dict[str, Any]) -> None:
    from engine.errors import InvalidInputError

    for name, value in given.items():
        if value is not None:
            raise InvalidInputError(name, value, "nothing beside --resume: the sweep's own settings hold")


def _start(spec: SweepSpec, runs_dir: Path | None) -> SweepResult:
    from experiments.interrupts import terminated_is_interrupted
    from experiments.session import start_sweep

    with terminated_is_interrupted():
        return start_sweep(spec, runs_dir)


def _resume(name: str, budget: str | None, runs_dir: Path | None) -> SweepResult:
    from experiments.interrupts import terminated_is_interrupted
    from experiments.session import resume_sweep
    from experiments.spec import parse_duration

    with terminated_is_interrupted():
        return resume_sweep(name, parse_duration(budget) if budget is not None else None, runs_dir)


def _show_plan(spec: SweepSpec, as_json: bool) -> None:
    from rich.console import Console

    from experiments.calibrate import planned_run_s
    from experiments.design import make_schedule
    from experiments.views import plan_json, plan_view

    cells = make_schedule(spec.levels, spec.baseline, spec.blocks, spec.seed)
    run_s = planned_run_s(spec)
    if as_json:
        typer.echo(json.dumps(plan_json(spec, cells, run_s)))
    else:
        Console(highlight=False).print(plan_view(spec, cells, run_s))


def _finish(result: SweepResult, as_json: bool) -> NoReturn:
    """Print the result and leave with the code that its end deserves."""
    from rich.console import Console

    from experiments.views import result_view

    Console(stderr=as_json, highlight=False).print(result_view(result))
    if as_json:
        typer.echo(result.model_dump_json())
    code = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_UNUSABLE}.get(result.status, 0)
    if code:
        typer.echo(
            f"error: {result.invalid_reasons[0] if result.invalid_reasons else result.status}", err=True
        )
    raise typer.Exit(code)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_USAGE)
