"""``workbench runs list|show|rm|export|import``: the run store on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="List, show, remove, export and import stored runs.")

RunsDir = Annotated[Path | None, typer.Option(help="Run store (default: $WORKBENCH_RUNS, else runs/).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_SHOWN = ("ttft_p50", "itl_p50", "itl_p99", "output_tok_s", "goodput_ratio")


@app.command("list")
def list_runs(
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """List runs, oldest first; a folder that can't be read is listed with the reason."""
    from workbench.runstore import RunStore

    store = RunStore(runs_dir)
    found = [info for info in store.list() if tag is None or tag in info.tags]
    if as_json:
        typer.echo(json.dumps({"runs": [_row(info) for info in found]}))
        return
    from rich.table import Table

    from workbench.commands.display import make_console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("run", "status", "valid", "workload", "model", *_SHOWN, "note"):
        table.add_column(title, no_wrap=title == "run", justify="right" if title in _SHOWN else "left")
    for info in found:
        valid = {True: "yes", False: "no", None: ""}[info.valid]
        cells = [_cell(info.metrics.get(name)) for name in _SHOWN]
        note = info.error or " ".join(filter(None, (info.name, *info.tags)))
        table.add_row(
            info.id, info.status or "unreadable", valid, info.workload, info.model or "", *cells, note
        )
    make_console().print(table if found else f"no runs under {store.root}")


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="Id, the beginning of one, or folder.")],
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one run."""
    from workbench.runstore import RunStore

    opened = RunStore(runs_dir).open(run)
    if as_json:
        stored = opened.manifest.model_dump(mode="json")
        typer.echo(json.dumps({"run": opened.id, "manifest": stored, "metrics": opened.metrics()}))
        return
    from workbench.commands.display import make_console, summary_view

    console = make_console()
    manifest = opened.manifest
    console.print(f"run {opened.id} · {manifest.status} · {manifest.created}", soft_wrap=True)
    if manifest.error:
        console.print(f"error: {manifest.error}", soft_wrap=True)
    console.print(summary_view(opened))
    console.print(
        "tables: " + ", ".join(f"{n} ({t.rows})" for n, t in manifest.tables.items()), soft_wrap=True
    )
    for note in manifest.notes:
        console.print(f"note: {note}", soft_wrap=True)
    console.print(f"folder {opened.path}", soft_wrap=True)


@app.command("rm")
def remove(
    runs: Annotated[list[str], typer.Argument(help="Ids of runs.")],
    runs_dir: RunsDir = None,
) -> None:
    """Remove runs for good."""
    from workbench.runstore import RunStore

    store = RunStore(runs_dir)
    for run in runs:
        store.remove(run)
        typer.echo(f"removed {run}", err=True)


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="Id, the beginning of one, or folder.")],
    out: Annotated[
        Path | None, typer.Option(help="File (aiperf: folder); default: a name in the current folder.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="bundle (all of it, as .tar.gz), vllm, guidellm, aiperf, csv or perfetto.")
    ] = "bundle",
    runs_dir: RunsDir = None,
) -> None:
    """Write a run for another tool, or whole for another machine."""
    from engine.errors import InvalidInputError
    from workbench.exchange.files import FORMATS, export_run
    from workbench.runstore import RunStore

    if format not in FORMATS:
        raise InvalidInputError("format", format, f"one of {', '.join(FORMATS)}")
    path = export_run(RunStore(runs_dir).open(run), format, out)
    typer.echo(str(path))


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="Bundle, or a result of vllm bench serve, GuideLLM, AIPerf, or our CSV.")
    ],
    benchmark: Annotated[int, typer.Option(min=0, help="Which benchmark of a GuideLLM report.")] = 0,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Store a run that was measured elsewhere; what its format does not tell stays unknown."""
    from workbench.exchange.files import import_file
    from workbench.runstore import RunStore

    run = import_file(file, RunStore(runs_dir), benchmark)
    if as_json:
        typer.echo(json.dumps({"run": run.id, "notes": run.manifest.notes}))
        return
    for note in run.manifest.notes:
        typer.echo(note, err=True)
    typer.echo(run.id)


def _row(info: Any) -> dict[str, Any]:
    return {
        "id": info.id,
        "path": str(info.path),
        "created": info.created,
        "name": info.name,
        "status": info.status,
        "target": info.target,
        "model": info.model,
        "workload": info.workload,
        "tags": list(info.tags),
        "sweep": info.sweep_id,
        "valid": info.valid,
        "metrics": info.metrics,
        "error": info.error,
    }


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
