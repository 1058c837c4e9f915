"""Capacity, gate, calculator, lesson and findings pages: what they say, where their links lead, what they
refuse.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports import studies
from reports.dashboard import store
from tests.reports.page_opener import open_page, said
from tests.reports.store_factory import HOSTILE, write_run
from tests.reports.study_factory import write_capacity, write_findings, write_gate, write_self_test
from workbench.errors import RunCorruptError

NEW = ("capacity", "gate", "live")
NOTHING = {
    "capacity": "no readable capacity search yet",
    "gate": "no readable gate yet",
    "live": "Nothing is running in this store",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("WORKBENCH_RUNS", str(folder))
    return folder


@pytest.mark.parametrize("view", NEW)
@pytest.mark.parametrize("kind", ["missing", "empty", "one", "broken"])
def test_small_stores(view: str, kind: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "missing":
        monkeypatch.setenv("WORKBENCH_RUNS", str(root / "nowhere"))
    if kind == "one":
        write_run(root, "only", count=6)
    if kind == "broken":
        for name in ("capacity.json", "gate.json", "aa.json"):
            (root / "cut").mkdir(exist_ok=True)
            (root / "cut" / name).write_text('{"schema_version": 1, "id": "c')
    text = said(open_page(view))
    assert NOTHING[view] in text
    if kind == "broken" and view in ("capacity", "gate"):
        assert f"cut can't be read: cut: {view}.json" in text.replace("\\", "")


def test_the_capacity_page_answers_in_words_and_lists_its_probes(root: Path) -> None:
    write_run(root, "probe-1", count=4)
    write_capacity(root, runs=["probe-1", "gone", None, None, None])
    page = open_page("capacity")
    text = said(page)
    assert "Up to 4.05 requests/s keep 90% of the requests within ttft:600 itl:100." in text
    assert "3.84 to 4.28" in text
    assert "5 of 6" in text
    table = page.dataframe[0].value
    assert table["result"].tolist() == ["✕ missed", "✓ passed", "✕ missed", "✓ passed", "✓ passed", "void"]
    assert table["open"].tolist()[:1] == ["/run?run=probe-1"]
    assert table["open"].isna().tolist()[1:] == [True] * 5
    assert table["queue"].tolist()[:2] == ["grows", "stable"]
    assert len(page.get("plotly_chart")) == 1
    assert page.query_params["capacity"] == "capacity-demo"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("below the lowest tried", "Not even 0.500 requests/s"),
        ("above the highest tried", "12.0 requests/s, the highest rate tried, still keep"),
        ("unknown", "Not known: the runs single out no rate from 0.500 to 12.0 requests/s"),
    ],
)
def test_a_search_without_a_rate_says_why(root: Path, answer: str, words: str) -> None:
    write_capacity(root, answer=answer, status="budget")
    text = said(open_page("capacity"))
    assert words in text
    assert "ended at its budget" in text


def test_the_gate_page_shows_verdict_pairs_history_and_noise(root: Path) -> None:
    write_gate(root, "gate-1", day=1)
    write_gate(root, "gate-2", slower=0.2, day=2)
    write_self_test(root)
    page = open_page("gate", gate="gate-2")
    text = said(page)
    assert "**FAIL.** The head is worse." in text
    assert "10 of 12 pairs count" in text
    assert "1 of 1 comparisons are identical" in text
    table = page.dataframe[0].value
    assert table["compared"].tolist() == ["TTFT", "ITL", "Output tok/s"]
    assert all(v.startswith("✕") for v in table["verdict"])
    assert all(c.startswith(("+1", "+2")) for c in table["change"])
    page = open_page("gate", gate="gate-1", tab="History")
    assert page.dataframe[0].value["gate"].tolist() == ["gate-2", "gate-1"]
    assert len(page.get("plotly_chart")) == 1
    page = open_page("gate", gate="gate-1", tab="This machine (A/A)")
    assert "0.05%" in said(page)
    assert "18 of 20" in said(page)


def test_an_unusable_gate_is_not_green(root: Path) -> None:
    write_gate(root, "gate-1", unusable=True, reason="the control kernel kept moving")
    page = open_page("gate")
    assert "This is not green" in said(page)
    assert not page.success


def test_choices_in_the_address_that_make_no_sense_are_ignored(root: Path) -> None:
    write_run(root, "run-1", count=4)
    page = open_page("runs", show=HOSTILE, q=HOSTILE, members="?", tags=HOSTILE)
    assert "No run fits this filter." in said(page)
    assert HOSTILE not in said(page)
    assert "1 of 1 runs" in said(open_page("runs", show="../../etc"))
    write_run(root, "run-2", count=4)
    manifest = root / "run-2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"tags": ["demo"]', '"tags": ["other"]'))
    assert "1 of 2 runs" in said(open_page("runs", tags="other"))


def test_hostile_text_stays_text(root: Path) -> None:
    write_capacity(root, slo=HOSTILE)
    write_gate(root, "gate-1", reason=HOSTILE)
    write_run(root, "run-1", count=6)
    write_findings(root / "run-1", claim=HOSTILE)
    for page in (open_page("capacity"), open_page("gate"), open_page("run", run="run-1", tab="Findings")):
        assert HOSTILE not in said(page)


def test_findings_lead_to_steps_and_requests(root: Path) -> None:
    write_run(root, "run-1", count=8)
    page = open_page("run", run="run-1", tab="Findings")
    assert "was not diagnosed yet" in said(page)
    assert "workbench diagnose run-1" in page.code[0].value
    write_findings(root / "run-1")
    page = open_page("run", run="run-1", tab="Findings")
    text = said(page).replace("\\", "")
    assert "**Bottleneck:** max_num_seqs keeps requests waiting (confidence high" in text
    assert page.code[0].value == "workbench sweep --param max_num_seqs --values 8,16,32"
    links = {link.proto.label.replace("\\", ""): link.proto.query_string for link in page.get("page_link")}
    assert links["step 2"] == "run=run-1&step=2"
    assert links["request req-0003"] == "run=run-1&tab=Requests&request=req-0003"
    assert "no preemption in this run" in text
    page = open_page("run", run="run-1", tab="Requests", request="req-0003")
    assert "Request req-0003" in said(page)
    assert "There is no request called nobody" in said(
        open_page("run", run="run-1", tab="Requests", request="nobody")
    )


def test_unreadable_findings_are_named_and_break_nothing(root: Path) -> None:
    write_run(root, "run-1", count=6)
    (root / "run-1" / "findings.json").write_text('{"run": 5}')
    assert "The findings can't be read" in said(open_page("run", run="run-1", tab="Findings"))


def test_the_lesson_opens_at_its_step(root: Path) -> None:
    write_run(root, "run-1", count=6)
    page = open_page("xray", lesson="12")
    text = said(page)
    assert "What happens in step 12" in text
    assert "Preemption" in text
    assert len(page.get("plotly_chart")) == 3
    next(b for b in page.button if b.label == "Next").click().run()
    assert page.query_params["lesson"] == "13"
    next(b for b in page.button if b.label == "Next new idea").click().run()
    assert "What happens in step 15" in said(page)
    for bad in ("-3", "999999", "../..", HOSTILE):
        assert "What happens in step" in said(open_page("xray", lesson=bad))


def test_the_lesson_needs_no_run(root: Path) -> None:
    assert "What happens in step 0" in said(open_page("xray"))


def test_blocks_of_a_run_are_told_by_request(root: Path) -> None:
    write_run(root, "run-1", count=8)
    text = said(open_page("xray", run="run-1", step="5"))
    assert "cells are grouped by request" in text
    assert "block_size 16" in text.replace("\\", "")


def test_the_calculator_is_in_the_address(root: Path) -> None:
    page = open_page("calculator", model="Llama-3.1-70B", gpu="L4", gpus="1")
    assert "The weights do not fit: 141.1 GB" in said(page)
    page = open_page("calculator", model="Llama-3.1-8B", gpu="H100 SXM")
    assert "It fits: up to 321 requests of 1,024 + 256 tokens" in said(page)
    assert open_page("calculator", model="nobody", gpus="-4", isl="x").selectbox(key="model").value


@pytest.mark.parametrize(("view", "key"), [("capacity", "capacity"), ("gate", "gate")])
def test_ids_from_the_address_open_nothing_outside(root: Path, view: str, key: str, tmp_path: Path) -> None:
    write_capacity(tmp_path / "elsewhere", "secret")
    write_gate(tmp_path / "elsewhere", "secret-gate")
    write_capacity(root)
    write_gate(root, "gate-1")
    for bad in ("../elsewhere/secret", "../elsewhere/secret-gate", str(tmp_path), "..", HOSTILE):
        page = open_page(view, **{key: bad})
        assert f"There is no {key} called" in said(page)
        assert not page.get("plotly_chart")


def test_links_out_of_the_store_are_refused(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    write_capacity(outside, "secret")
    write_run(outside, "run-x", count=4)
    (root / "linked").symlink_to(outside / "secret")
    (root / "linked-run").symlink_to(outside / "run-x")
    write_run(root, "inside", count=4)
    (root / "inside" / "findings.json").symlink_to(outside / "secret" / "capacity.json")
    (root / "file").mkdir()
    (root / "file" / "capacity.json").symlink_to(outside / "secret" / "capacity.json")
    found = {study.id: study for study in studies.list_capacities(root)}
    assert found["linked"].result is None
    assert "outside the run store" in (found["linked"].error or "")
    assert found["file"].result is None
    assert "links to a file outside" in (found["file"].error or "")
    with pytest.raises(RunCorruptError, match="links to a file outside"):
        store.open_run("inside")
    text = said(open_page("runs")).replace("\\", "")
    assert "linked-run can't be read: it links to a folder outside this run store" in text
    assert "chunk 256" not in text


def test_newer_and_huge_files_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_capacity(root)
    path = root / "capacity-demo" / "capacity.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "schema_version": 9}))
    with pytest.raises(RunCorruptError, match="newer schema"):
        studies.load_capacity(path.parent)
    monkeypatch.setattr(studies, "MOST_BYTES", 10)
    with pytest.raises(RunCorruptError, match="larger than"):
        studies.load_capacity(path.parent)
    with pytest.raises(RunCorruptError, match="No such file"):
        studies.load_gate(path.parent)
