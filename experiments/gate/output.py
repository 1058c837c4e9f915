"""What a gate leaves behind: ``gate.json``, ``gate.md`` (also a pull request's comment), ``junit.xml``."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from experiments.gate.models import Finding, GateResult, GateVerdict, Tier
from workbench.atomic import write_json, write_text

MARKER = "<!-- workbench-gate -->"
"""Finds the one comment of earlier runs."""
_TITLES = {0: "outputs", 1: "scheduler on virtual time", 2: "wall clock"}
_MOST_ROWS = 30


def write_results(result: GateResult, out: Path) -> None:
    """All three files, each whole or not at all."""
    write_json(out / "gate.json", result.model_dump(mode="json"))
    write_text(out / "gate.md", markdown(result))
    write_text(out / "junit.xml", junit(result))


def markdown(result: GateResult) -> str:
    """The verdict first, then a table a tier, then the environment."""
    lines = [
        MARKER,
        f"## Performance gate: {result.verdict}",
        "",
        result.reason or "nothing was compared",
        "",
    ]
    lines += [f"base `{_name(result.base)}` · head `{_name(result.head)}` · {result.seconds:.0f} s", ""]
    for tier in result.tiers:
        lines += [f"### Tier {tier.tier}, {_TITLES.get(tier.tier, '')}: {tier.verdict}", "", tier.reason, ""]
        lines += _table(tier)
    machine = result.machine
    lines += [
        f"{machine.get('cpu') or 'unknown processor'}, {machine.get('cores')} cores, Python "
        f"{machine.get('python')}, torch {machine.get('torch')}, workbench {result.tool_version}",
        "",
    ]
    return "\n".join(lines)


def _name(side: object) -> str:
    revision, commit = getattr(side, "revision", None), getattr(side, "commit", None)
    short = commit[:12] if commit else "working folder"
    return f"{revision} ({short})" if revision else short


def _table(tier: Tier) -> list[str]:
    shown = [f for f in tier.findings if tier.tier == 2 or f.text != "identical"]
    if not shown:
        return []
    rows = ["| | verdict | base | head | ratio (above 1 is worse) | |", "|---|---|---|---|---|---|"]
    if tier.tier != 2:
        rows[0] = "| | verdict | base | head | ratio | |"
    rows += [_row(finding) for finding in shown[:_MOST_ROWS]]
    if len(shown) > _MOST_ROWS:
        rows.append(f"| … {len(shown) - _MOST_ROWS} more in gate.json | | | | | |")
    return [*rows, ""]


def _row(finding: Finding) -> str:
    ratio = "" if finding.ratio is None else f"{finding.ratio:.4g}"
    if finding.low is not None and finding.high is not None:
        ratio += f" [{finding.low:.3f}, {finding.high:.3f}]"
    text = finding.text + (f"; accepted: {finding.acknowledged}" if finding.acknowledged else "")
    if finding.mde is not None and finding.verdict is GateVerdict.INCONCLUSIVE:
        text += f"; {finding.mde:.0%} would have been seen"
    cells = [finding.name, finding.verdict, _number(finding.base), _number(finding.head), ratio, text]
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def junit(result: GateResult) -> str:
    """One case a finding; INCONCLUSIVE and SKIPPED are skipped with their text, UNUSABLE is an error."""
    root = ElementTree.Element("testsuites", name="workbench gate")
    for tier in result.tiers:
        cases = tier.findings or [Finding(name="tier", verdict=tier.verdict, text=tier.reason)]
        if tier.verdict is GateVerdict.UNUSABLE:
            cases = [Finding(name="tier", verdict=tier.verdict, text=tier.reason)]
        verdicts = [case.verdict for case in cases]
        suite = ElementTree.SubElement(
            root, "testsuite", name=f"tier {tier.tier}", tests=str(len(cases)),
            failures=str(verdicts.count(GateVerdict.FAIL)), errors=str(verdicts.count(GateVerdict.UNUSABLE)),
            skipped=str(sum(v in (GateVerdict.INCONCLUSIVE, GateVerdict.SKIPPED) for v in verdicts)),
        )  # fmt: skip
        for case in cases:
            _case(suite, tier.tier, case)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, tier: int, finding: Finding) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"gate.tier{tier}", name=finding.name)
    kind = {
        GateVerdict.FAIL: "failure",
        GateVerdict.UNUSABLE: "error",
        GateVerdict.INCONCLUSIVE: "skipped",
        GateVerdict.SKIPPED: "skipped",
    }.get(finding.verdict)
    if kind is not None:
        ElementTree.SubElement(case, kind, message=f"{finding.verdict}: {finding.text}")
