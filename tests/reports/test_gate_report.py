"""The report of a gate: every section, escaped text, and what it says about folders that are none."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from reports.commands import register
from reports.gate_page import SECTIONS, find_gate, gate_context, gate_markdown
from reports.html import gate_html
from reports.series import gate_csv
from tests.reports.gate_factory import gate_result, write_gate
from tests.reports.store_factory import HOSTILE
from workbench.errors import RunCorruptError

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gates")
    write_gate(root / "one")
    write_gate(root / "evil", hostile=True)
    return root


def test_the_page_has_every_section_and_the_verdict(gates: Path) -> None:
    text = gate_html(gates / "one")
    for anchor, _ in SECTIONS:
        assert re.search(rf'<section[^>]* id="{anchor}"', text)
    assert "ttft_ms slower, twice" in text.lower() or "Tier 2: ttft_ms slower, twice" in text
    assert "workbench gate --base origin/main" in text
    assert 'http-equiv="Content-Security-Policy"' in text


def test_the_history_is_of_the_gates_beside_it(gates: Path) -> None:
    context = gate_context(gates / "one")
    history = context["figures"]["history"]
    assert "2 gates" in history.caption
    assert [tile.value for tile in context["tiles"]] == ["✓ pass", "✓ pass", "✕ fail", "412 s"]


def test_hostile_text_stays_text(gates: Path) -> None:
    page = gate_html(gates / "evil")
    assert HOSTILE not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    outside_code = re.sub(r"`[^`]*`", "", gate_markdown(gates / "evil"))
    assert "<img" not in outside_code.replace("\\<", "")
    assert "img src" in outside_code


def test_the_csv_holds_the_pairs_that_count(gates: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(gate_csv(gates / "one"))))
    dots = [float(r["x"]) for r in rows if r["figure"] == "pairs" and r["series"].startswith("pairs")]
    pairs = [p for p in gate_result().tiers[2].details["pairs"] if p["usable"]]
    expected = [100 * (p["head"]["ttft_ms"] / p["base"]["ttft_ms"] - 1) for p in pairs]
    assert dots[: len(expected)] == pytest.approx(expected)
    point = next(r for r in rows if r["figure"] == "pairs" and r["series"] == "fail (n = 1)")
    assert [float(point[k]) for k in ("x", "x_low", "x_high")] == pytest.approx([11, 9, 13])


@pytest.mark.parametrize(
    ("form", "begin"),
    [("html", "<!doctype html>"), ("md", "<!-- workbench-gate -->"), ("csv", "figure,panel")],
)
@pytest.mark.parametrize("how", ["id", "folder", "file"])
def test_report_finds_a_gate(gates: Path, form: str, begin: str, how: str) -> None:
    app = typer.Typer()
    register(app)
    target = {"id": "one", "folder": str(gates / "one"), "file": str(gates / "one" / "gate.json")}[how]
    done = RUNNER.invoke(app, ["report", target, "--format", form, "--runs-dir", str(gates)])
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    assert path == gates / "one" / f"report.{form}"
    assert path.read_text().startswith(begin)


def test_no_gate_and_a_torn_one(gates: Path, tmp_path: Path) -> None:
    assert find_gate(gates, "nobody") is None
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "gate.json").write_text('{"verdict": "PASS"')
    with pytest.raises(RunCorruptError, match=r"torn: gate\.json"):
        gate_context(tmp_path / "torn")


def test_a_gate_without_its_second_tier_has_a_page(tmp_path: Path) -> None:
    result = gate_result()
    short = result.model_copy(update={"tiers": result.tiers[:1]})
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "gate.json").write_text(short.model_dump_json())
    text = gate_html(tmp_path / "short")
    assert "Not asked for." in text
    assert text.count("data-figure=") == 1
