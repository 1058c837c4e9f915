"""The command ``workbench capacity``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from experiments.capacity.models import CapacitySpec

EXIT_USAGE = 2
EXIT_UNUSABLE = 3
EXIT_INTERRUPTED = 130
_TARGET, _OUTPUT = "Target", "Output"


def capacity(
    slo: Annotated[
        str | None, typer.Option(help="Objectives in ms, 'ttft:2000 itl:100' (default: the workload's).")
    ] = None,
    target_ratio: Annotated[
        str, typer.Option(help="Share of the offered requests that must meet them.")
    ] = "90%",
    workload: Annotated[str, typer.Option(help="Preset or .toml file.")] = "chat-and-documents",
    lowest: Annotated[
        float | None, typer.Option(help="Lowest rate to try, requests/s (default: from a calibration).")
    ] = None,
    highest: Annotated[float | None, typer.Option(help="Highest rate to try.")] = None,
    tolerance: Annotated[str, typer.Option(help="Good enough on either side.")] = "5%",
    seconds: Annotated[float, typer.Option(help="Sending time of one run.")] = 20.0,
    max_runs: Annotated[int, typer.Option(help="Most runs.")] = 30,
    budget: Annotated[str | None, typer.Option(help="Wall time, such as 10m.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the workloads (default: drawn, recorded).")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="builtin, vllm, sglang, or the URL of a server.", rich_help_panel=_TARGET),
    ] = None,
    target_command: Annotated[
        str | None,
        typer.Option(help="Start this instead; {port} stands for a free port.", rich_help_panel=_TARGET),
    ] = None,
    target_args: Annotated[
        str | None,
        typer.Option(help="Further flags for --target vllm or sglang.", rich_help_panel=_TARGET),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(help="Name in the API (default: the first listed).", rich_help_panel=_TARGET),
    ] = None,
    runs_dir: Annotated[
        Path | None,
        typer.Option(help="The run store (default runs/, or WORKBENCH_RUNS).", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=_OUTPUT)
    ] = False,
    **engine: Any,
) -> None:
    """The highest request rate at which enough requests meet their objectives, with its uncertainty."""
    from engine.errors import InvalidInputError
    from experiments.targets import choose_target

    try:
        choice = choose_target(target, target_command, target_args, served_model_name)
        spec = make_capacity_spec(
            slo=slo, target_ratio=target_ratio, workload=workload, lowest=lowest, highest=highest,
            tolerance=tolerance, seconds=seconds, max_runs=max_runs, budget=budget, seed=seed, engine=engine,
            target=choice,
        )  # fmt: skip
        _run(spec, runs_dir, as_json)
    except InvalidInputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def _run(spec: CapacitySpec, runs_dir: Path | None, as_json: bool) -> None:
    from experiments.capacity.run import Capacity
    from experiments.capacity.runner import RateRunner
    from experiments.interrupts import terminated_is_interrupted
    from workbench.errors import WorkbenchError
    from workbench.runstore import RunStore

    store = RunStore(runs_dir)
    runner = RateRunner(spec, store)
    search = Capacity(
        spec, store.root, runner, probe=lambda: runner.probe().request_s, machine=lambda: runner.machine,
        say=lambda text: typer.echo(text, err=True),
    )  # fmt: skip
    try:
        with terminated_is_interrupted():
            result = search.run()
    except WorkbenchError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_UNUSABLE) from None
    typer.echo(result.text, err=as_json)
    if as_json:
        typer.echo(result.model_dump_json())
    code = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_UNUSABLE}.get(result.status, 0)
    if code == EXIT_UNUSABLE:
        reason = result.runs[-1].reason if result.runs else "nothing was run"
        typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(code)


def make_capacity_spec(
    *,
    slo: str | None,
    target_ratio: str,
    workload: str,
    lowest: float | None,
    highest: float | None,
    tolerance: str,
    seconds: float,
    max_runs: int,
    budget: str | None,
    seed: int | None,
    engine: dict[str, Any],
    target: Any,
) -> CapacitySpec:
    """Raises:
    InvalidInputError: the first value that can't be used.
    """
    from engine.config import EngineConfig
    from engine.errors import InvalidInputError
    from experiments.capacity.models import CapacitySpec
    from experiments.spec import parse_duration, parse_share
    from experiments.targets import READY_S, server_command
    from workbench.slo import parse_slo
    from workloads import WorkloadError, load_workload

    try:
        found = load_workload(workload)
    except WorkloadError as error:
        raise InvalidInputError(error.field, error.value, error.allowed) from None
    if not found.arrivals.open_rate:
        raise InvalidInputError("workload", found.name, "a workload with arrivals at a rate")
    text = slo or found.slo
    if not text:
        raise InvalidInputError("slo", slo, f"objectives in ms: {found.name} brings none")
    for name, rate in (("lowest", lowest), ("highest", highest)):
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidInputError(name, rate, "requests per second, above 0")
    if lowest is not None and highest is not None and lowest >= highest:
        raise InvalidInputError("lowest", lowest, f"below --highest {highest:g}")
    if not seconds > 0:
        raise InvalidInputError("seconds", seconds, "above 0")
    if max_runs < 1:
        raise InvalidInputError("max-runs", max_runs, "at least 1")
    model = str(engine.get("model", EngineConfig.model_fields["model"].default))
    settings = {name: value for name, value in engine.items() if name != "model"}
    if target.kind == "attach" and settings:
        name, value = next(iter(settings.items()))
        raise InvalidInputError(name, value, "no engine settings with a server that is already running")
    if target.kind == "builtin":
        EngineConfig.create(**engine)
    if target.kind == "command":
        server_command(target, model, settings, {})
    return CapacitySpec(
        slo=str(parse_slo(text, "slo")), target_ratio=parse_share("target-ratio", target_ratio),
        lowest=lowest, highest=highest, tolerance=parse_share("tolerance", tolerance),
        seconds=seconds, max_runs=max_runs,
        budget_s=parse_duration(budget) if budget is not None else None, workload=workload,
        workload_spec=found.model_dump(mode="json"),
        seed=seed if seed is not None else secrets.randbelow(2**31), model=model, engine=settings,
        target=target, ready_timeout_s=READY_S if target.kind == "command" else 120.0,
    )  # fmt: skip
