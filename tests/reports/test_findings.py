"""The diagnosis in the reports: every part of a finding, hostile text as text, and what is missing named."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.diagnosis.models import (
    FINDINGS,
    Check,
    Diagnosis,
    Effect,
    Evidence,
    Family,
    Finding,
    Rival,
    abstain,
)
from reports.findings import load_findings
from reports.html import run_html
from reports.markdown import run_markdown
from tests.reports.store_factory import HOSTILE, write_run
from workbench.errors import RunCorruptError
from workbench.runstore import Run, RunStore

FOUND = Diagnosis(
    run="run-1",
    against=["run-0"],
    checks=[Check(name="trace coverage", ok=True, value=1.0, text="trace coverage 100%")],
    findings=[
        Finding(
            family=Family.QUEUEING,
            verdict="finding",
            cause="max_num_seqs",
            claim="First tokens wait for a place.",
            effect=Effect(name="waiting", value=812.5, unit="ms", share=0.25),
            evidence=[
                Evidence(text="64% refused by max_num_seqs", table="steps", rows=[7, 8, 9, 10, 11]),
                Evidence(text=HOSTILE),
            ],
            rivals=[
                Rival(name="front end", ruled_out=True, why="1% of the way"),
                Rival(name="overload", ruled_out=False, why="the queue grows"),
            ],
            confidence="medium",
            next="workbench sweep --param max_num_seqs --values 2,4,8",
        ),
        abstain(Family.PREEMPTION, "no request was preempted"),
    ],
)


def run_with(tmp_path: Path, text: str | None) -> Run:
    write_run(tmp_path, "run-1", count=4)
    if text is not None:
        (tmp_path / "run-1" / FINDINGS).write_text(text, encoding="utf-8")
    return RunStore(tmp_path).open("run-1")


def test_a_page_shows_claim_effect_evidence_rivals_and_the_next_experiment(tmp_path: Path) -> None:
    text = run_html(run_with(tmp_path, FOUND.model_dump_json()))
    section = text[text.index('<section id="diagnosis"') : text.index('<section id="latency"')]
    for words in (
        "First tokens wait for a place.",
        "confidence medium",
        "waiting: 812 ms; 25% of all requests&#39; time",
        "64% refused by max_num_seqs",
        "steps 7, 8, 9, 10 …",
        "front end: 1% of the way",
        "✓ out",
        "? open",
        "<pre><code>workbench sweep --param max_num_seqs --values 2,4,8</code></pre>",
        "no request was preempted",
        "trace coverage 100%",
        "<code>run-0</code>",
    ):
        assert words in section
    assert HOSTILE not in section


def test_markdown_has_the_findings(tmp_path: Path) -> None:
    text = run_markdown(run_with(tmp_path, FOUND.model_dump_json()))
    assert "**First tokens wait for a place.**" in text
    assert "waiting: 812 ms; 25% of all requests' time" in text
    assert "- not ruled out: overload: the queue grows" in text
    assert "```sh\nworkbench sweep --param max_num_seqs --values 2,4,8\n```" in text
    assert HOSTILE not in text.split("```")[0]


def test_nothing_found_and_not_diagnosed_are_not_the_same(tmp_path: Path) -> None:
    innocent = FOUND.model_copy(update={"findings": [abstain(Family.PREEMPTION, "no request was preempted")]})
    diagnosed = run_with(tmp_path / "a", innocent.model_dump_json())
    assert "No finding: nothing in this run is accused." in run_html(diagnosed)
    assert "No finding: nothing in this run is accused." in run_markdown(diagnosed)
    fresh = run_with(tmp_path / "b", None)
    assert load_findings(fresh) is None
    assert "workbench diagnose run-1" in run_html(fresh)
    assert "Diagnosis" not in run_markdown(fresh)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "findings.json: Invalid JSON"),
        ("[1]", "findings.json: Input should be"),
        ('{"run": 3, "checks": [], "findings": []}', "findings.json: run: "),
        (FOUND.model_copy(update={"schema_version": 99}).model_dump_json(), "has schema 99"),
    ],
)
def test_a_diagnosis_that_can_not_be_read_is_one_line_on_the_page(
    tmp_path: Path, text: str, says: str
) -> None:
    run = run_with(tmp_path, text)
    with pytest.raises(RunCorruptError, match=r"findings\.json") as caught:
        load_findings(run)
    assert says in str(caught.value)
    assert "findings.json" in run_html(run)
    assert "findings.json" in run_markdown(run).replace("\\", "")
