"""``workbench diagnose RUN``: what is slow, why, what speaks for it, and what to run next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.diagnosis.models import Diagnosis, Finding

RunsDir = Annotated[
    Path | None,
    typer.Option(help="The run store (default runs/, or WORKBENCH_RUNS).", rich_help_panel="Output"),
]


def diagnose(
    run: Annotated[str, typer.Argument(help="Id of a run, the beginning of one, or its folder.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="A run to hold it against, repeatable: a healthy baseline, or the same requests with "
            "the cache "
            "off (two of these measure how often outputs differ by themselves)."
        ),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel="Output")
    ] = False,
) -> None:
    """Name a run's bottleneck with evidence and rivals, or say why the evidence is not enough.

    The result is also left in the run's folder as findings.json.
    """
    from rich.console import Console

    from experiments.diagnosis.diagnose import diagnose_run
    from workbench.runstore import RunStore

    store = RunStore(runs_dir)
    found = diagnose_run(store.open(run), [store.open(name) for name in against or ()])
    show(found, Console(stderr=as_json, highlight=False))
    if as_json:
        typer.echo(found.model_dump_json())


def show(found: Diagnosis, console: Console) -> None:
    """Findings in full, abstentions in a line each."""
    console.print(f"run {found.run}" + (f" against {', '.join(found.against)}" if found.against else ""))
    for check in found.checks:
        console.print(f"  {'ok ' if check.ok else 'NO '} {check.text}", soft_wrap=True, markup=False)
    for finding in found.findings:
        if finding.verdict == "finding":
            _show_finding(finding, console)
    console.print()
    for finding in found.findings:
        if finding.verdict == "abstain":
            console.print(f"{finding.family}: no finding. {finding.claim}", soft_wrap=True, markup=False)


def _show_finding(finding: Finding, console: Console) -> None:
    console.print()
    console.print(finding.claim, style="bold", soft_wrap=True, markup=False)
    size = f" · {finding.effect_text}" if finding.effect else ""
    console.print(
        f"  {finding.family} · {finding.cause} · confidence {finding.confidence}{size}",
        soft_wrap=True,
        markup=False,
    )
    for evidence in finding.evidence:
        where = f" ({evidence.table} {', '.join(map(str, evidence.rows[:4]))} …)" if evidence.rows else ""
        console.print(f"  + {evidence.text}{where}", soft_wrap=True, markup=False)
    for rival in finding.rivals:
        console.print(
            f"  {'-' if rival.ruled_out else '?'} {rival.name}: {rival.why}", soft_wrap=True, markup=False
        )
    if finding.next:
        console.print(f"  next: {finding.next}", soft_wrap=True, markup=False)
