"""``workbench profile``: watch some steps of a run with the profiler, or look into a trace that is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` a flag for every setting of the builtin engine."""
    from engine.config import EngineConfig
    from engine.server.flags import add_flags

    return add_flags(EngineConfig, skip=("model", "trace_dir"), panels=("Engine (builtin target)",))(command)


def profile(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A profiled run, or any Kineto trace (.json, .json.gz); without one a run is made."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name, folder or .gguf file.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Attach to a server with /start_profile and /stop_profile.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Preset or .toml file (default chat-and-documents).")
    ] = None,
    request_rate: Annotated[str | None, typer.Option(help="Requests per second, inf: all at once.")] = "inf",
    num_prompts: Annotated[int | None, typer.Option(help="Requests to send.")] = 32,
    after: Annotated[float, typer.Option(help="Seconds into the load at which the window begins.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Most steps of the window.")] = 50,
    seconds: Annotated[float, typer.Option(help="Most seconds of the window.")] = 10.0,
    stacks: Annotated[bool, typer.Option("--stacks", help="Also sample Python stacks with py-spy.")] = False,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Run store (default: $WORKBENCH_RUNS, else runs/).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, all else on stderr.")
    ] = False,
    **engine: Any,
) -> None:
    """Capture a window of steps with torch.profiler, or analyse a Kineto trace: ours, vLLM's, SGLang's.

    The run that is captured is flagged as profiled: its own latencies are distorted.
    """
    from workbench.commands.display import make_console
    from workbench.runstore import RunStore

    console = make_console(stderr=as_json)
    store, code = RunStore(runs_dir), 0
    if trace is not None and (Path(trace).is_file() or trace.endswith((".json", ".gz"))):
        found = _of_file(Path(trace))
    else:
        if trace is None:
            from workbench.commands.request import BenchFlags, make_spec
            from workbench.commands.run import run_and_show
            from workbench.profiling.flags import profile_window

            window = profile_window({"profile": True, "profile_after": after, "profile_steps": steps,
                                     "profile_seconds": seconds, "profile_stacks": stacks})  # fmt: skip
            spec = make_spec(
                BenchFlags(base_url=base_url, model=model, workload=workload, request_rate=request_rate,
                           num_prompts=num_prompts, tag=("profile",), profile=window, engine=engine)
            )  # fmt: skip
            run, code = run_and_show(spec, store, live=True)
        else:
            run = store.open(trace)
        found = _of_run(run)
    _show(found, console)
    if as_json:
        typer.echo(json.dumps(found))
    raise typer.Exit(code)


def _of_file(path: Path) -> dict[str, Any]:
    from workbench.errors import RunCorruptError
    from workbench.profiling.collect import summarise
    from workbench.profiling.kineto import read_trace

    trace = read_trace(path)
    if not trace.rows:
        raise RunCorruptError(
            f"{path}: no operator and no kernel of torch.profiler in it: not a Kineto trace"
        )
    return {"source": str(path), "notes": [], "windows": [summarise(path.stem, trace)]}


def _of_run(run: Any) -> dict[str, Any]:
    from engine.errors import InvalidInputError
    from workbench.profiling.collect import PROFILE
    from workbench.profiling.stacks import STACKS

    try:
        stored = json.loads((run.path / PROFILE).read_bytes())
    except (OSError, ValueError):
        why = "; ".join(run.manifest.notes) or "no profile.json"
        raise InvalidInputError("trace", run.id, f"a run that was profiled ({why})") from None
    notes = [note for note in run.manifest.notes if note.startswith(("profile", "py-spy"))]
    stacks = run.path / STACKS
    if stacks.is_file():
        notes.append(f"Python stacks: {stacks} (speedscope.app opens it)")
    return {"source": run.id, "notes": notes, "windows": stored["windows"]}


def _show(found: dict[str, Any], console: Console) -> None:
    console.print(f"profile of {found['source']}", soft_wrap=True, markup=False)
    for note in found["notes"]:
        console.print(f"  {note}", soft_wrap=True, markup=False)
    for window in found["windows"]:
        report = window["report"]
        if report is None:
            continue
        console.print(f"{window['name']}: trace coverage {report['coverage']['share']:.0%}", markup=False)
        if report["refusal"]:
            console.print(f"  no GPU verdict: {report['refusal']}", soft_wrap=True, markup=False)
        else:
            _show_gpu(report, console)
        if window.get("steps_ns") and window["operators"]:
            seen = sum(one["self_ns"] for one in window["operators"])
            console.print(
                f"  steps took {window['steps_ns'] / 1e6:.1f} ms, {seen / 1e6:.1f} ms of it in torch's "
                "operators (below); native kernels and Python are not among them",
                soft_wrap=True, markup=False,
            )  # fmt: skip
        for one in window["operators"][:10]:
            console.print(
                f"  {one['self_ns'] / 1e6:9.2f} ms  {one['calls']:6d} x  {one['name']}", markup=False
            )


def _show_gpu(report: dict[str, Any], console: Console) -> None:
    window = report["window_ns"]
    console.print(
        f"  GPU idle {report['idle_share']:.1%} of {window / 1e6:.1f} ms: "
        + ", ".join(f"{kind} {ns / window:.1%}" for kind, ns in report["gaps_ns"].items() if ns),
        soft_wrap=True, markup=False,
    )  # fmt: skip
    console.print(
        f"  exposed communication {report['exposed_communication_ns'] / window:.1%}, "
        f"exposed copies {report['exposed_copies_ns'] / window:.1%}, {report['slow_calls']} runtime "
        "calls over 50 µs, "
        f"{report['short_kernels']} kernels shorter than their launch",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    overlapping = report["coverage"]["gpu_rows_overlapping"]
    if overlapping:
        console.print(
            f"  {overlapping} kernels begin before the one before them on their stream has ended",
            markup=False,
        )
    for name, calls, ns in report["top"]:
        console.print(f"  {ns / 1e6:9.2f} ms  {calls:6d} x  {name[:90]}", markup=False)
