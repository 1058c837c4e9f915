"""``workbench diagnose RUN``: what is slow, why, what speaks for it, and what to run next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.diagnosis.models import Diagnosis, Evidence, Finding

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

    def complain(text: str) -> None:
        typer.echo(f"note: {text}", err=True)

    store = RunStore(runs_dir)
    found = diagnose_run(store.open(run), [store.open(name) for name in against or ()], complain)
    show(found, Console(stderr=as_json, highlight=False))
    if as_json:
        typer.echo(found.model_dump_json())


def show(found: Diagnosis, console: Console) -> None:
    """Findings in full, abstentions in a line each."""

    def put(text: str, style: str | None = None) -> None:
        console.print(text, style=style, soft_wrap=True, markup=False)

    put(f"run {found.run}" + (f" against {', '.join(found.against)}" if found.against else ""))
    for check in found.checks:
        put(f"  {'ok ' if check.ok else 'NO '} {check.text}")
    findings = [one for one in found.findings if one.verdict == "finding"]
    others = [one for one in found.findings if one.verdict == "abstain"]
    for number, finding in enumerate(findings, 1):
        put("")
        put(f"{number}. {finding.claim}", "bold")
        for label, text in _lines(finding):
            put(f"   {label:14}{text}")
    put("")
    put("no finding in the other families:" if findings else "no finding: nothing is accused", "bold")
    for finding in others:
        put(f"   {finding.family:20}{finding.claim}")


def _lines(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each line below the claim; a label is written once."""
    yield "what", f"{finding.family}, cause {finding.cause}; confidence {finding.confidence}"
    if finding.effect:
        yield "effect", finding.effect_text
    evidence = [one.text + _where(one) for one in finding.evidence]
    out = [f"{rival.name}: {rival.why}" for rival in finding.rivals if rival.ruled_out]
    left = [f"{rival.name}: {rival.why}" for rival in finding.rivals if not rival.ruled_out]
    for label, texts in (("evidence", evidence), ("ruled out", out), ("not ruled out", left)):
        for place, text in enumerate(texts):
            yield label if place == 0 else "", text
    if finding.next:
        yield "to confirm", finding.next


def _where(evidence: Evidence) -> str:
    if not evidence.rows:
        return ""
    more = " …" if len(evidence.rows) > 4 else ""
    return f" ({evidence.table} {', '.join(map(str, evidence.rows[:4]))}{more})"
