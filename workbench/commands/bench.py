"""``workbench bench``: one measured run. Flags are named after ``vllm bench serve`` and ``vllm serve``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

_LOAD = "Load"
_TRAFFIC = "Traffic"
_TARGET = "Target"
_OUTPUT = "Output"
_DEADLINES = "Deadlines"


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` a flag for every setting of the traffic, the client and the builtin engine."""
    from engine.config import EngineConfig
    from engine.server.flags import add_flags
    from workbench.commands.dataset import ClientFlags, TrafficFlags
    from workbench.profiling.flags import ProfileFlags

    return add_flags(
        TrafficFlags,
        ClientFlags,
        ProfileFlags,
        EngineConfig,
        skip=("model", "seed", "trace_dir"),  # --model names both targets' model, --seed is the workload's
        panels=("Datasets and traces", "Client", "Profile", "Engine (builtin target)"),
    )(command)


def bench(
    model: Annotated[
        str | None,
        typer.Option(
            help="Builtin: name, folder or .gguf file; attached: name in the API.", rich_help_panel=_TARGET
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="Attach to this OpenAI-compatible server; without it the builtin engine is started.",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="completions or chat.", rich_help_panel=_TARGET)
    ] = "completions",
    header: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, repeatable.", rich_help_panel=_TARGET)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="WORKBENCH_API_KEY", help="Bearer token; never stored.", rich_help_panel=_TARGET),
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object merged into every request.", rich_help_panel=_TARGET)
    ] = None,
    engine_seed: Annotated[
        int | None,
        typer.Option(help="The engine's seed (--seed is the workload's).", rich_help_panel=_TARGET),
    ] = None,
    ready_check_timeout_sec: Annotated[
        float | None,
        typer.Option(help="Wait this long for the server (default 120).", rich_help_panel=_TARGET),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Preset or .toml file (default chat-and-documents).", rich_help_panel=_TRAFFIC),
    ] = None,
    dataset_name: Annotated[
        str | None,
        typer.Option(
            help="random, mixed, a preset; with --dataset-path: sharegpt, custom, mooncake, azure, burstgpt.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    random_input_len: Annotated[
        int | None, typer.Option(help="Default 1024.", rich_help_panel=_TRAFFIC)
    ] = None,
    random_output_len: Annotated[
        int | None, typer.Option(help="Default 128.", rich_help_panel=_TRAFFIC)
    ] = None,
    random_range_ratio: Annotated[
        float | None,
        typer.Option(help="Lengths vary by this share around their middle.", rich_help_panel=_TRAFFIC),
    ] = None,
    random_prefix_len: Annotated[
        int | None,
        typer.Option(help="Tokens that all prompts share, before the rest.", rich_help_panel=_TRAFFIC),
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes arrivals, lengths and mix.", rich_help_panel=_TRAFFIC)] = 0,
    nonce: Annotated[
        str | None,
        typer.Option(help="Fixes the content; default: new in every run.", rich_help_panel=_TRAFFIC),
    ] = None,
    reuse_content: Annotated[
        bool,
        typer.Option(
            "--reuse-content",
            help="Same prompts in every run: measures a warm cache.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = False,
    num_prompts: Annotated[int | None, typer.Option(help="Requests to send.", rich_help_panel=_LOAD)] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second, inf: all at once. Default: the workload's, else calibrated.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            help="Gamma arrivals; 1 is Poisson, less is burstier, inf constant.", rich_help_panel=_LOAD
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option(help="Alone: closed loop; with a rate: due requests wait.", rich_help_panel=_LOAD),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Make arrivals for this many seconds.", rich_help_panel=_LOAD)
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Stop sending after this many seconds.", rich_help_panel=_LOAD)
    ] = None,
    num_warmups: Annotated[
        int | None, typer.Option(help="Requests before the measured ones (default 4).", rich_help_panel=_LOAD)
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Objectives in ms: 'ttft:200 itl:50 e2el:5000'. Default: the workload's.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    connect_timeout: Annotated[
        float | None, typer.Option(help="Seconds (default 10).", rich_help_panel=_DEADLINES)
    ] = None,
    first_token_timeout: Annotated[
        float | None, typer.Option(help="Seconds.", rich_help_panel=_DEADLINES)
    ] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Seconds without a byte (default 120).", rich_help_panel=_DEADLINES)
    ] = None,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds.", rich_help_panel=_DEADLINES)
    ] = None,
    name: Annotated[str, typer.Option(help="A name for the run.", rich_help_panel=_OUTPUT)] = "",
    tag: Annotated[list[str] | None, typer.Option(help="Repeatable.", rich_help_panel=_OUTPUT)] = None,
    request_id_prefix: Annotated[str, typer.Option(help="Of X-Request-Id.", rich_help_panel=_OUTPUT)] = "",
    save_result: Annotated[
        bool,
        typer.Option("--save-result", help="Also write a JSON with vLLM's keys.", rich_help_panel=_OUTPUT),
    ] = False,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="With the arrays per request.", rich_help_panel=_OUTPUT)
    ] = False,
    metric_percentiles: Annotated[
        str, typer.Option(help="Percentiles in that JSON, e.g. 50,95,99.9.", rich_help_panel=_OUTPUT)
    ] = "99",
    result_dir: Annotated[Path, typer.Option(help="Where that JSON goes.", rich_help_panel=_OUTPUT)] = Path(),
    result_filename: Annotated[str | None, typer.Option(help="Its name.", rich_help_panel=_OUTPUT)] = None,
    runs_dir: Annotated[
        Path | None,
        typer.Option(help="Run store (default: $WORKBENCH_RUNS, else runs/).", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object on stdout, all else on stderr.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Print this machine's own card as a load generator, and measure nothing else.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    progress: Annotated[bool, typer.Option(help="Show a live line.", rich_help_panel=_OUTPUT)] = True,
    **settings: Any,
) -> None:
    """Measure one run: start or attach a server, send a workload, store a bundle, print what it did."""
    if self_test:
        from workbench.commands import selftest

        selftest.self_test(as_json)
        return
    from engine.errors import InvalidInputError
    from workbench.commands.dataset import ClientFlags, TrafficFlags
    from workbench.commands.request import BenchFlags, make_spec
    from workbench.commands.run import run_and_show
    from workbench.exchange.vllm import check_folder, parse_percentiles, save_vllm_result
    from workbench.profiling.flags import ProfileFlags, profile_window
    from workbench.runstore import RunStore

    traffic, client, profile = (
        {name: settings.pop(name) for name in model.model_fields if name in settings}
        for model in (TrafficFlags, ClientFlags, ProfileFlags)
    )
    percentiles = parse_percentiles(metric_percentiles)
    if save_result or save_detailed:
        check_folder(result_dir)
    elif result_filename is not None:
        raise InvalidInputError("result-filename", result_filename, "only with --save-result")
    if engine_seed is not None:
        settings["seed"] = engine_seed
    spec = make_spec(
        BenchFlags(
            base_url=base_url,
            model=model,
            endpoint=endpoint,
            header=header or (),
            api_key=api_key,
            extra_body=extra_body,
            workload=workload,
            dataset_name=dataset_name,
            num_prompts=num_prompts,
            random_input_len=random_input_len,
            random_output_len=random_output_len,
            random_range_ratio=random_range_ratio,
            random_prefix_len=random_prefix_len,
            request_rate=request_rate,
            burstiness=burstiness,
            max_concurrency=max_concurrency,
            duration=duration,
            max_seconds=max_seconds,
            reuse_content=reuse_content,
            num_warmups=num_warmups,
            goodput=goodput or (),
            seed=seed,
            nonce=nonce,
            name=name,
            tag=tag or (),
            request_id_prefix=request_id_prefix,
            ready_check_timeout_sec=ready_check_timeout_sec,
            connect_timeout=connect_timeout,
            first_token_timeout=first_token_timeout,
            idle_timeout=idle_timeout,
            request_timeout=request_timeout,
            traffic=traffic,
            client=client,
            profile=profile_window(profile),
            engine=settings,
        )
    )
    run, code = run_and_show(spec, RunStore(runs_dir), live=progress)
    if save_result or save_detailed:
        path = save_vllm_result(
            run, result_dir, result_filename, detailed=save_detailed, percentiles=percentiles
        )
        typer.echo(f"result: {path}", err=True)
    if as_json:
        metrics = run.metrics() or {}
        valid = bool((metrics.get("validity") or {}).get("valid"))
        typer.echo(json.dumps({"run": run.id, "valid": valid, "metrics": metrics}))
    raise typer.Exit(code)
