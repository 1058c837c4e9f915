"""The commands of this package: ``workbench report`` and ``workbench dashboard``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from workbench.runstore import Run, RunStore

EXIT_USAGE = 2
RunsDir = Annotated[Path | None, typer.Option(help="The run store (default runs/, or WORKBENCH_RUNS).")]


class Format(StrEnum):
    """What ``workbench report`` can write."""

    HTML = "html"
    MARKDOWN = "md"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add the commands of this package to ``app``."""
    app.command("report")(report)
    app.command("dashboard")(dashboard)


def report(
    target: Annotated[
        str, typer.Argument(metavar="RUN|SWEEP|GATE", help="Id or folder of a run, a sweep or a gate.")
    ],
    form: Annotated[
        Format,
        typer.Option("--format", help="html: one offline page; md: for a comment; csv: plotted series."),
    ] = Format.HTML,
    out: Annotated[
        Path | None, typer.Option(help="File to write; - is stdout. Default: report.FORMAT in the folder.")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Write a report of a run, a sweep or a gate and print its path."""
    from engine.errors import InvalidInputError
    from reports.gate_page import find_gate
    from reports.html import REPORT_FILE, write_text
    from reports.sweeps import find_sweep
    from workbench.errors import RunCorruptError
    from workbench.runstore import RunStore

    store = RunStore(runs_dir)
    try:
        sweep = find_sweep(store.root, target)
        gate = None if sweep else find_gate(store.root, target)
        run = None if sweep or gate else _open(store, target)
        place = sweep or gate or (run.path if run else None)
        text = _render(form, sweep, gate, run)
        if out is not None and str(out) == "-":
            typer.echo(text, nl=False)
            return
        path = out or Path(place or ".") / Path(REPORT_FILE).with_suffix(f".{form}")
        typer.echo(str(write_text(path, text)))
    except (InvalidInputError, RunCorruptError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"out={str(out)!r}: a file that can be written ({error.strerror or error})")


def _open(store: RunStore, target: str) -> Run:
    from engine.errors import InvalidInputError

    try:
        return store.open(target)
    except InvalidInputError as error:
        allowed = f"a run, sweep or gate under {store.root}, or its folder (see: workbench runs list)"
        raise (error if "unique" in str(error) else InvalidInputError("target", target, allowed)) from None


def _render(form: Format, sweep: Path | None, gate: Path | None, run: Run | None) -> str:
    from reports import gate_page, html, markdown, series

    if run is not None:
        by_format = {
            Format.HTML: html.run_html,
            Format.MARKDOWN: markdown.run_markdown,
            Format.CSV: series.run_csv,
        }
        return by_format[form](run)
    if gate is not None:
        of_gate = {
            Format.HTML: html.gate_html,
            Format.MARKDOWN: gate_page.gate_markdown,
            Format.CSV: series.gate_csv,
        }
        return of_gate[form](gate)
    of_sweep = {
        Format.HTML: html.sweep_html,
        Format.MARKDOWN: markdown.sweep_markdown,
        Format.CSV: series.sweep_csv,
    }
    return of_sweep[form](Path(sweep or "."))


def dashboard(
    runs_dir: RunsDir = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 8501,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
) -> None:
    """Open the run store in the browser: it starts nothing. Served on 127.0.0.1 until Ctrl-C."""
    from reports.dashboard.launch import PortTakenError, serve

    try:
        serve(runs_dir, port, open_browser=not no_browser)
    except PortTakenError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_USAGE)
