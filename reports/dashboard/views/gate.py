"""Gate: is one revision as right and as fast as another? Verdicts, pairs, history, the machine's noise."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from experiments.gate.models import Finding, GateResult, Side, Tier
from experiments.gate.selftest import SelfTest
from reports.dashboard import store, ui
from reports.facts import Tile, fact_list
from reports.figures import gate as figures
from reports.markdown import escape
from reports.metric_names import number
from workbench.errors import RunCorruptError

_HOW = "Make one with `workbench gate --base REV --head REV --out RUNS/gate-NAME`, inside this run store."
_TITLES = {0: "Tier 0 · outputs", 1: "Tier 1 · scheduler on virtual time", 2: "Tier 2 · wall clock"}
_SAYS = {
    "PASS": "Nothing got worse by more than the gate lets through.",
    "FAIL": "The head is worse. Do not merge it without a reason.",
    "INCONCLUSIVE": "The data can't tell. This does not block; the table says what would have been seen.",
    "UNUSABLE": "Nothing that could be believed was measured. This is not green.",
    "SKIPPED": "Nothing was compared.",
}
_MARKS = {"PASS": "✓", "FAIL": "✕", "INCONCLUSIVE": "?", "UNUSABLE": "!", "SKIPPED": "–"}
TABS = ("Verdict", "History", "This machine (A/A)")


def side(one: Side) -> str:
    """A revision as one word."""
    commit = one.commit[:12] if one.commit else "working folder"
    return f"{one.revision} ({commit})" if one.revision else commit


def _verdict(gate_id: str) -> None:
    try:
        found = store.gate(gate_id)
    except RunCorruptError as error:
        st.error(f"This gate can't be read: {escape(error)}")
        return
    text = f"**{found.verdict}.** {_SAYS.get(found.verdict, '')}\n\n{escape(found.reason)}"
    box = {"PASS": st.success, "FAIL": st.error}.get(found.verdict, st.warning)
    box(text)
    ui.tiles(
        [
            *[
                Tile(what, one.revision or "working folder", (one.commit or "no commit")[:12])
                for what, one in (("Base", found.base), ("Head", found.head))
            ],
            *[
                Tile(f"Tier {t.tier}", f"{_MARKS.get(t.verdict, '')} {t.verdict.lower()}", _most(t.reason))
                for t in found.tiers
            ],
        ]
    )
    for tier in found.tiers:
        _tier(tier)
    _facts(found)


def _most(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _tier(tier: Tier) -> None:
    st.subheader(_TITLES.get(tier.tier, f"Tier {tier.tier}"))
    st.markdown(f"{_MARKS.get(tier.verdict, '')} **{tier.verdict.lower()}**: {escape(tier.reason)}")
    if tier.tier == 2 and tier.findings:
        ui.chart(figures.wall_clock(tier), "gate-pairs", "Pairs of head against base")
        used, pairs = tier.details.get("usable_pairs"), tier.details.get("pairs")
        made = len(pairs) if isinstance(pairs, list) else None
        st.caption(
            f"{number(used)} of {number(made)} pairs count; in the others the control kernel differed "
            "between the sides (something else used the machine)."
        )
    alike = [f for f in tier.findings if tier.tier != 2 and f.text == "identical"]
    shown = [f for f in tier.findings if f not in alike]
    if shown:
        st.dataframe(
            pd.DataFrame([_row(f, tier.tier) for f in shown[:500]]),
            hide_index=True,
            placeholder="–",
            alt=f"What tier {tier.tier} compared",
        )
    if alike:
        st.caption(f"{len(alike)} of {len(tier.findings)} comparisons are identical.")


def _row(finding: Finding, tier: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "compared": figures.LABELS.get(finding.name, finding.name),
        "verdict": f"{_MARKS.get(finding.verdict, '')} {finding.verdict.lower()}",
        "base": number(finding.base),
        "head": number(finding.head),
    }
    if tier == 2:
        row |= {"change": _percent(finding.ratio), "95 % interval": _span(finding)}
        row["would have been seen"] = None if finding.mde is None else f"{finding.mde:.0%}"
    row["note"] = "; ".join(t for t in (finding.text, _accepted(finding)) if t) or None
    return row


def _accepted(finding: Finding) -> str:
    return f"accepted: {finding.acknowledged}" if finding.acknowledged else ""


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio - 1:+.1%}"


def _span(finding: Finding) -> str | None:
    if finding.low is None or finding.high is None:
        return None
    return f"{finding.low - 1:+.1%} to {finding.high - 1:+.1%}"


def _facts(found: GateResult) -> None:
    with st.expander("Command and machine"):
        st.code(shlex.join(found.command), language=None, wrap_lines=True)
        facts = {"created": found.created, "seconds": found.seconds, "tool": found.tool_version}
        ui.fragment("facts", pairs=[*fact_list(facts), *fact_list(found.machine)])


def _history() -> None:
    gates = [study for study in store.gates() if study.result]
    rows = [
        {
            "open": ui.link("gate", gate=study.id),
            "gate": study.id,
            "created": study.result.created[:16].replace("T", " "),
            "verdict": f"{_MARKS.get(study.result.verdict, '')} {study.result.verdict.lower()}",
            "base": side(study.result.base),
            "head": side(study.result.head),
            "reason": study.result.reason,
        }
        for study in gates
        if study.result
    ]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        column_config={"open": st.column_config.LinkColumn("", display_text="open ↗", width=70)},
        alt="Gates of the store",
    )
    past = [(study.id, study.result) for study in reversed(gates) if study.result][-60:]
    ui.chart(figures.history(past), "gate-history", "Change of each metric, gate by gate")
    st.caption(
        "Each gate compares its own two revisions; changes of neighbouring gates do not add up. Dotted: "
        "tolerated slow-down, dashed: what a pass excludes."
    )


def _noise() -> None:
    tests = [study for study in store.self_tests() if study.result]
    if not tests or tests[0].result is None:
        ui.nothing(
            "No A/A record in this store. `workbench gate --self-test --out RUNS/gate-aa` measures a "
            "revision against itself: how noisy this machine is, how often the gate would be wrong, how many "
            "pairs it needs."
        )
        return
    found: SelfTest = tests[0].result
    st.caption(f"{escape(tests[0].id)}, {escape(found.created[:16].replace('T', ' '))} UTC")
    ui.tiles(
        [
            Tile("False alarms", f"{found.false_alarm_rate:.2%}", f"below {found.false_alarm_upper:.2%}"),
            Tile("10 % slower is caught", f"{found.caught_ten_percent:.0%}", "of the time"),
            Tile("Recommended", ",".join(map(str, found.looks)), "--pairs"),
            Tile("Usable pairs", f"{found.usable_pairs} of {found.pairs}"),
        ]
    )
    ui.chart(figures.noise(found), "gate-noise", "Runs of one revision against their middle")
    rows = [
        {
            "metric": figures.LABELS.get(m.name, m.name),
            "run to run": f"{m.run_sd:.1%}",
            "inside a pair": f"{m.pair_sd:.1%}",
            "drift": f"{m.drift:+.1%}",
            "spikes": f"{m.spikes:.0%}",
            **{f"{n} pairs see": f"{effect:.0%}" for n, effect in m.detectable.items()},
        }
        for m in found.metrics
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, placeholder="–", alt="Noise of this machine")


st.title("Performance gate")
listed = store.gates()
broken = [(s.id, s.error) for s in listed if s.result is None]
broken += [(s.id, s.error) for s in store.self_tests() if s.result is None]
for name, error in broken:
    st.warning(f"{escape(name)} can't be read: {escape(error or 'unknown reason')}")
readable = {study.id: study for study in listed if study.result}
if not readable:
    ui.nothing(f"This store has no readable gate yet. {_HOW}")
    if store.self_tests():
        st.subheader(TABS[2])
        _noise()
else:
    names = {i: f"{s.result.verdict}, {side(s.result.head)} — {i}" for i, s in readable.items() if s.result}
    chosen = ui.choose("Gate", "gate", list(readable), names)
    if chosen:
        ui.tabs(TABS, [partial(_verdict, chosen), _history, _noise])
