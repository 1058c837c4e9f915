"""``workbench compare A B [C ...]``: stored runs against the first of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

_SHOWN = (
    "ttft_p50",
    "ttft_p99",
    "itl_p50",
    "itl_p99",
    "tpot_p50",
    "stall_p50",
    "e2el_p50",
    "output_tok_s",
    "goodput_s",
)


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="A B [C ...]", help="Runs; the first is the baseline.")
    ],
    runs_dir: Annotated[
        Path | None, typer.Option(help="Run store (default: $WORKBENCH_RUNS, else runs/).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Ratios with intervals, and a warning where more than one thing differs."""
    from engine.errors import InvalidInputError
    from workbench.comparison import compare_runs
    from workbench.runstore import RunStore

    if len(runs) < 2:
        raise InvalidInputError("runs", runs, "two runs or more")
    store = RunStore(runs_dir)
    opened = [store.open(name) for name in runs]
    baseline, results = opened[0], [compare_runs(opened[0], other) for other in opened[1:]]
    if as_json:
        typer.echo(json.dumps({"baseline": baseline.id, "runs": results}))
        return
    _print(baseline.id, results)


def _print(baseline: str, results: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from workbench.commands.display import make_console

    console = make_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"over {baseline}", overflow="fold")
    for result in results:
        table.add_column(result["run"], justify="right", overflow="fold")
    for name in _SHOWN:
        if any(name in result["ratios"] for result in results):
            table.add_row(name, *(_cell(result["ratios"].get(name)) for result in results))
    console.print(table)
    for result in results:
        for name, (before, after) in result["differences"].items():
            console.print(f"{result['run']}: {name}: {before} → {after}", soft_wrap=True)
        for warning in result["warnings"]:
            console.print(f"warning: {result['run']}: {warning}", style="yellow", soft_wrap=True)
    console.print(
        "Intervals hold the noise inside these runs only; `workbench sweep` measures that between runs.",
        style="dim",
    )


def _cell(ratio: dict[str, float | None] | None) -> str:
    if ratio is None:
        return "–"
    interval = "" if ratio["low"] is None else f" [{ratio['low']:.3g}, {ratio['high']:.3g}]"
    return f"{ratio['point']:.3g}x{interval}"
