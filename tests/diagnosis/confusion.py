"""The table of planted faults against verdicts, as ``docs/diagnosis.md`` shows it.

``python -m tests.diagnosis.confusion`` prints it; with ``--variants 6`` the cases are served again with other
traffic and other noise, and what goes wrong is counted.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace

from experiments.diagnosis.models import Diagnosis
from tests.diagnosis.cases import CASES, Case, run_case
from tests.diagnosis.world import World


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


def varied(case: Case, seed: int) -> Case:
    """The same fault under other traffic: arrivals stretched by up to 12 %, lengths changed by up to 15 %."""
    rng = random.Random(f"{seed}/{case.name}")
    stretch, sizes = rng.uniform(0.88, 1.12), rng.getrandbits(32)

    def change(world: World) -> World:
        own = random.Random(sizes)  # the cache-off run gets the very same requests
        traffic = [
            replace(
                one,
                due_s=one.due_s * stretch,
                prompt=max(one.prefix + 2, round(one.prompt * own.uniform(0.85, 1.15))),
                output=max(2, round(one.output * own.uniform(0.85, 1.15))),
            )
            for one in world.traffic
        ]
        return replace(world, traffic=traffic, seed=100 + seed, noise=0.02)

    return replace(case, world=change(case.world), against=[change(world) for world in case.against])


def count_wrong(variants: int) -> str:
    """Top findings that are not the planted one, over all cases and variants."""
    wrong = accused = 0
    for seed in range(variants):
        for case in CASES:
            top = run_case(varied(case, seed)).top
            wrong += (
                (top.family.value, top.cause) != (case.family, case.cause) if top else case.family is not None
            )
            accused += top is not None and case.family is None
    innocent = sum(case.family is None for case in CASES)
    return (
        f"{wrong} of {variants * len(CASES)} verdicts wrong, {accused} of {variants * innocent} "
        "innocent runs accused"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=0)
    arguments = parser.parse_args()
    print(
        count_wrong(arguments.variants) if arguments.variants else table([run_case(case) for case in CASES])
    )
