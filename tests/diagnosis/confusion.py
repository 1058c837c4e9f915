"""The table of planted faults against verdicts, as ``docs/diagnosis.md`` shows it.

``python -m tests.diagnosis.confusion`` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.diagnosis.models import Diagnosis
from tests.diagnosis.cases import CASES, Case, run_case


def verdict(family: str | None, cause: str | None) -> str:
    return f"{family}: {cause}" if family else "none"


def row(case: Case, found: Diagnosis) -> str:
    top = found.top
    got = verdict(top.family.value, top.cause) if top else "none"
    further = [verdict(f.family.value, f.cause) for f in found.findings[1:] if f.verdict == "finding"]
    sure = top.confidence if top else "abstains"
    return (
        f"| {case.name} | {case.rival} | {verdict(case.family, case.cause)} | {got} | {sure} | "
        f"{', '.join(further)} |"
    )


def table(found: Sequence[Diagnosis]) -> str:
    """Cases in order, one line each, then families against families."""
    titles = ("planted", "looks like", "right verdict", "top finding", "confidence", "also found")
    head = f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"
    rows = [row(case, one) for case, one in zip(CASES, found, strict=True)]
    return "\n".join([head, *rows, "", *_counts(found)])


def _counts(found: Sequence[Diagnosis]) -> list[str]:
    names = [*dict.fromkeys(case.family for case in CASES if case.family), "none"]
    lines = [f"| planted \\ found | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    tops = [one.top.family.value if one.top else "none" for one in found]
    for planted in names:
        mine = [top for case, top in zip(CASES, tops, strict=True) if (case.family or "none") == planted]
        lines.append(f"| {planted} | {' | '.join(str(mine.count(name)) for name in names)} |")
    return lines


if __name__ == "__main__":
    print(table([run_case(case) for case in CASES]))
