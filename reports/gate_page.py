"""What the page of a gate says, as plain data for its template."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from experiments.gate.models import GateResult, Side, Tier
from experiments.gate.output import markdown
from reports.facts import Tile, fact_list
from reports.figures import gate as gate_figures
from reports.figures import style
from reports.markdown import escape
from reports.metric_names import change
from reports.render import Figure
from reports.studies import GATE_FILE, list_gates, load_gate

SECTIONS: tuple[tuple[str, str], ...] = (
    ("answer", "Answer"),
    ("revisions", "Revisions"),
    ("tier-0", "Outputs"),
    ("tier-1", "Virtual time"),
    ("tier-2", "Wall clock"),
    ("history", "History"),
    ("environment", "Environment"),
    ("reproduce", "Reproduce"),
)
TIERS = {
    0: ("Tier 0: are the outputs the same?", "Pinned requests must give the same tokens on both sides."),
    1: (
        "Tier 1: the scheduler on virtual time",
        "Integers on a frozen cost model, compared with tolerance 0: no noise, so any difference is real.",
    ),
    2: (
        "Tier 2: the wall clock",
        "Pairs of fresh processes that take turns; a pair whose control kernel differs between the sides "
        "is not counted, and a FAIL has to come back in a second set of processes.",
    ),
}
WORDS = {
    "PASS": ("✓", "ok", "No regression was found."),
    "FAIL": ("✕", "bad", "The head is worse than the base."),
    "INCONCLUSIVE": ("?", "warn", "The data can't tell; this does not block."),
    "UNUSABLE": ("!", "bad", "Nothing was measured that could be believed: this is not a pass."),
    "SKIPPED": ("–", "", "Nothing that it looks at has changed, or it was not asked for."),
}
_MOST_ROWS = 200


def find_gate(root: Path, name: str) -> Path | None:
    """Folder of the gate called ``name`` directly under ``root``, or of the path ``name`` (a folder, or its
    ``gate.json``); None when it is no gate.
    """
    beside = root / name
    if "/" not in name and (beside / GATE_FILE).is_file():
        return beside
    given = Path(name)
    given = given.parent if given.name == GATE_FILE else given
    return given if (given / GATE_FILE).is_file() else None


def gate_context(folder: Path) -> dict[str, Any]:
    """Everything ``gate.html.j2`` prints.

    Raises:
        RunCorruptError: ``gate.json`` can't be read.
    """
    result = load_gate(folder)
    tiers = {tier.tier: tier for tier in result.tiers}
    return {
        "gate": result,
        "id": folder.resolve().name,
        "sections": SECTIONS,
        "words": WORDS,
        "names": {side.name: side_name(side) for side in (result.base, result.head)},
        "sides": [(side.name, fact_list(_side(side))) for side in (result.base, result.head)],
        "tiles": tiles(result),
        "tiers": [(n, title, about, tiers.get(n)) for n, (title, about) in TIERS.items()],
        "most_rows": _MOST_ROWS,
        "figures": gate_figures_of(folder, result),
        "environment": fact_list(result.machine),
        "command": shlex.join(result.command),
    }


def side_name(side: Side) -> str:
    """Revision and commit, or the folder that it was."""
    commit = side.commit[:12] if side.commit else "working folder"
    return f"{side.revision} ({commit})" if side.revision else commit


def _side(side: Side) -> dict[str, Any]:
    return {
        "revision": side.revision or "none: a folder",
        "commit": side.commit or "not known",
        "folder": side.folder,
        "python": side.python,
    }


def tiles(result: GateResult) -> list[Tile]:
    """A figure per tier, and how long it took."""
    found = []
    for tier in result.tiers:
        mark, _, _ = WORDS[tier.verdict]
        title = TIERS.get(tier.tier, (f"Tier {tier.tier}", ""))[0].partition(":")[2].strip()
        detail = title
        worst = max((f.ratio for f in tier.findings if tier.tier == 2 and f.ratio is not None), default=None)
        if worst is not None:
            detail += f"; worst metric {change(worst)}"
        found.append(Tile(f"Tier {tier.tier}", f"{mark} {tier.verdict.lower()}", detail))
    found.append(Tile("Time", f"{result.seconds:.0f} s", f"exit code {result.exit_code}"))
    return found


def gate_figures_of(folder: Path, result: GateResult) -> dict[str, Figure]:
    """The figures of a gate's page by name; the history is of all gates beside this one."""
    second = next((tier for tier in result.tiers if tier.tier == 2), None)
    known = [(study.id, study.result) for study in list_gates(folder.resolve().parent) if study.result]
    gates = known[::-1] or [(folder.resolve().name, result)]
    return {
        "pairs": Figure(
            "fig-pairs",
            "Head against base, pair by pair",
            "Dots are pairs of runs, the bar is the 95 % interval over them. Dotted: the slow-down that is "
            "tolerated; dashed: the one that a pass has to exclude.",
            _wall_clock(second),
        ),
        "history": Figure(
            "fig-history",
            "Gates over time",
            f"Tier 2 of the {len(gates)} gates in this folder, oldest first.",
            gate_figures.history(gates),
        ),
    }


def _wall_clock(tier: Tier | None) -> Any:
    if tier is None:
        return style.empty("The wall clock (tier 2) was not asked for.")
    if not tier.findings:
        return style.empty(f"Tier 2 has nothing to show: {tier.reason or tier.verdict.lower()}.")
    return gate_figures.wall_clock(tier)


def gate_markdown(folder: Path) -> str:
    """The comment of a pull request as the gate itself writes it, with what came from elsewhere escaped.

    Raises:
        RunCorruptError: ``gate.json`` can't be read.
    """
    result = load_gate(folder)
    tiers = [
        tier.model_copy(
            update={
                "reason": escape(tier.reason),
                "findings": [
                    one.model_copy(
                        update={name: escape(getattr(one, name)) for name in ("name", "text", "acknowledged")}
                    )
                    for one in tier.findings
                ],
            }
        )
        for tier in result.tiers
    ]
    sides = {
        side.name: side.model_copy(update={"revision": side.revision and side.revision.replace("`", "'")})
        for side in (result.base, result.head)
    }
    machine = {k: escape(v) if isinstance(v, str) else v for k, v in result.machine.items()}
    safe = {"reason": escape(result.reason), "tiers": tiers, "machine": machine, **sides}
    return markdown(result.model_copy(update=safe))
