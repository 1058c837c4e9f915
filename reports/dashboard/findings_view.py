"""Findings of a run: what is slow, what speaks for it, which rivals were looked at, what to run next."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from experiments.diagnosis.models import Diagnosis, Evidence, Finding
from reports.dashboard import store, ui
from reports.markdown import escape
from workbench.errors import RunCorruptError

_MOST_STEPS = 4
_FAMILIES = {
    "queueing": "Waiting for the first token",
    "accelerator_gaps": "Gaps between computations",
    "context_scaling": "Decode time grows with context",
    "cache_correctness": "Is the cache right?",
    "preemption": "Preemptions",
}


def show(page: store.RunPage) -> None:
    """The findings tab of a run."""
    try:
        found = store.findings(page.id)
    except RunCorruptError as error:
        st.error(f"The findings can't be read: {escape(error)}")
        return
    if found is None:
        ui.nothing(
            "This run was not diagnosed yet. Its bottleneck with evidence and rivals, or the reason why none "
            "can be named, comes from:"
        )
        st.code(f"workbench diagnose {page.id} --runs-dir {store.root()}", language=None, wrap_lines=True)
        return
    named = [f for f in found.findings if f.verdict == "finding"]
    if not named:
        st.info(
            "No bottleneck is named: every family abstains, for the reasons below.",
            icon=":material/help:",
        )
    for finding in named:
        _finding(page, finding)
    _rest(found)


def _finding(page: store.RunPage, finding: Finding) -> None:
    with st.container(border=True):
        st.subheader(escape(finding.claim))
        facts = [
            ("Family", _FAMILIES.get(finding.family, finding.family)),
            ("Cause", finding.cause or "not named"),
            ("Confidence", finding.confidence),
        ]
        if finding.effect_text:
            facts.append(("Effect", finding.effect_text))
        ui.fragment("facts", pairs=facts)
        st.markdown("**What speaks for it**")
        for evidence in finding.evidence:
            st.markdown(f"- {escape(evidence.text)}")
            _steps(page, evidence)
        if finding.rivals:
            st.markdown("**Other explanations**")
            rows = [
                {
                    "explanation": rival.name,
                    "state": "✓ ruled out" if rival.ruled_out else "? open",
                    "why": rival.why,
                }
                for rival in finding.rivals
            ]
            why = {"why": st.column_config.TextColumn(width="large")}
            st.dataframe(
                pd.DataFrame(rows),
                hide_index=True,
                column_config=why,
                alt="Other explanations",
                row_height=36,
            )
        if finding.next:
            st.markdown("**The experiment that would confirm it**")
            st.code(finding.next, language=None, wrap_lines=True)


def _steps(page: store.RunPage, evidence: Evidence) -> None:
    """Links from an observation to the engine steps or the requests that it points to."""
    rows = [str(row) for row in evidence.rows[:_MOST_STEPS]]
    if not rows or evidence.table not in ("steps", "requests"):
        return
    with st.container(horizontal=True):
        for row in rows:
            if evidence.table == "steps" and row.isdecimal():
                st.page_link(
                    ui.XRAY_VIEW,
                    label=f"step {row}",
                    icon=":material/view_timeline:",
                    query_params={"run": page.id, "step": row},
                )
            elif evidence.table == "requests":
                st.page_link(
                    ui.RUN_VIEW,
                    label=f"request {escape(row)}",
                    icon=":material/person:",
                    query_params={"run": page.id, "tab": "Requests", "request": row},
                )
        if len(evidence.rows) > _MOST_STEPS:
            st.caption(f"and {len(evidence.rows) - _MOST_STEPS} more")


def _rest(found: Diagnosis) -> None:
    quiet = [f for f in found.findings if f.verdict == "abstain"]
    if quiet:
        st.subheader("No finding in")
        rows = [(_FAMILIES.get(f.family, f.family), f.claim) for f in quiet]
        ui.fragment("facts", pairs=rows)
    with st.expander("Checks of the data itself", expanded=any(not c.ok for c in found.checks)):
        for check in found.checks:
            st.markdown(f"- {'✓' if check.ok else '✕'} {escape(check.text)}")
    if found.against:
        st.caption("Held against " + ", ".join(escape(run) for run in found.against))
