"""The whole gate: fail-closed, exit codes, acknowledgement, revisions of a repository, what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from engine.errors import InvalidInputError
from experiments.gate.ack import ACK_FILE, acknowledge, read_acceptances
from experiments.gate.models import Finding, GateResult, GateVerdict, Side, Unusable
from experiments.gate.output import MARKER, junit, markdown, write_results
from experiments.gate.run import Gate, GateRequest
from experiments.gate.script_process import read_answer
from experiments.gate.scripts_runner import one_after_the_other, run_script
from tests.gate.sides import ScriptedWall, calm, side
from workbench.cli import main

WORKLOAD = {"ttft_p50_ns": 100, "steps": 50, "good_requests": 4, "prefix_hit_tokens": 9, "python_calls": 1000}
Change = Callable[[str, str, dict[str, Any]], None]
"""(side, script, answer): edits the answer in place."""


class Scripted:
    """All three scripts with made-up answers; ``change`` spoils them."""

    def __init__(self, change: Change = lambda _side, _script, _answer: None, **slower: float) -> None:
        self._change = change
        self._wall = ScriptedWall(slower)
        self.scripts: list[str] = []

    def __call__(
        self, side: Side, script: str, specification: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        self.scripts.append(script)
        answer: dict[str, Any]
        if script == "wall":
            answer = self._wall(side, script, specification, timeout_s)
        elif script == "simulate":
            answer = {"workloads": {w["name"]: dict(WORKLOAD) for w in specification["workloads"]}}
        else:
            answer = {"cases": {}}
            for group in specification["groups"]:
                for case in group["cases"]:
                    tokens = {"token_ids": [1, 2, 3], "finish_reason": "LENGTH", "error": None}
                    answer["cases"][f"{group['name']}/{case['name']}"] = tokens
        self._change(side.name, script, answer)
        return answer


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("base", "head"):
        (tmp_path / name / "engine").mkdir(parents=True)
        (tmp_path / name / "engine" / "__init__.py").write_text(f"# {name}\n")
    return tmp_path / "base", tmp_path / "head"


def gate(folders: tuple[Path, Path], run: Any, **options: Any) -> GateResult:
    base, head = folders
    request = GateRequest(out=base.parent / "out", base_dir=base, head_dir=head, **options)
    return Gate(request, run=run, turns=one_after_the_other(run), control=calm).result()


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.gate.run.python_for", lambda _side, _folder, _out: sys.executable)


def test_equal_sides_pass_with_exit_code_0(folders: tuple[Path, Path]) -> None:
    result = gate(folders, Scripted())
    assert (result.verdict, result.exit_code) == (GateVerdict.PASS, 0)
    assert [t.verdict for t in result.tiers] == [GateVerdict.PASS] * 3


def test_other_tokens_fail_and_nothing_else_is_compared(folders: tuple[Path, Path]) -> None:
    def change(side: str, script: str, answer: dict[str, Any]) -> None:
        if side == "head" and script == "tokens":
            answer["cases"]["default/long-greedy"]["token_ids"] = [1, 9, 3]

    run = Scripted(change)
    result = gate(folders, run)
    assert (result.verdict, result.exit_code) == (GateVerdict.FAIL, 1)
    assert "1 of 16 requests differ" in result.reason
    assert [t.verdict for t in result.tiers[1:]] == [GateVerdict.SKIPPED] * 2
    assert set(run.scripts) == {"tokens"}


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [
        ("steps", 51, GateVerdict.FAIL), ("steps", 49, GateVerdict.PASS),
        ("ttft_p50_ns", 101, GateVerdict.FAIL),
        ("good_requests", 3, GateVerdict.FAIL), ("good_requests", 5, GateVerdict.PASS),
        ("prefix_hit_tokens", 8, GateVerdict.FAIL), ("python_calls", 1040, GateVerdict.PASS),
        ("python_calls", 1060, GateVerdict.FAIL),
    ],
)  # fmt: skip
def test_tier_1_has_tolerance_0_in_the_bad_direction(
    folders: tuple[Path, Path], metric: str, value: int, verdict: GateVerdict
) -> None:
    def change(side: str, script: str, answer: dict[str, Any]) -> None:
        if side == "head" and script == "simulate":
            answer["workloads"]["mixed"][metric] = value

    result = gate(folders, Scripted(change), tiers=(1,))
    assert result.verdict is verdict
    assert [f.name for f in result.tiers[0].findings if f.text != "identical"] == [f"mixed/{metric}"]


def test_a_slow_down_on_the_wall_clock_is_exit_code_1(folders: tuple[Path, Path]) -> None:
    result = gate(folders, Scripted(itl_ms=0.2), tiers=(2,))
    assert (result.verdict, result.exit_code) == (GateVerdict.FAIL, 1)


def test_without_a_change_of_code_the_clock_is_not_asked(folders: tuple[Path, Path]) -> None:
    base, _ = folders
    run = Scripted()
    result = gate((base, base), run)
    assert [t.verdict for t in result.tiers] == [GateVerdict.PASS, GateVerdict.PASS, GateVerdict.SKIPPED]
    assert "wall" not in run.scripts
    assert gate((base, base), run, even_if_unchanged=True).tiers[2].verdict is GateVerdict.PASS


def spoil(what: str) -> Change:
    def change(side: str, script: str, answer: dict[str, Any]) -> None:
        if side != "head":
            return
        if what == "killed":
            raise Unusable(f"{side}: {script} failed (signal 9): killed")
        answer.clear() if what == "empty" else None
        if what == "cases" and script == "tokens":
            answer["cases"].clear()
        if what == "workloads" and script == "simulate":
            answer["workloads"].clear()
        if what == "turns" and script == "wall":
            answer["turns"].clear()

    return change


@pytest.mark.parametrize(
    ("what", "tier"),
    [("killed", 0), ("killed", 1), ("killed", 2), ("cases", 0), ("workloads", 1), ("turns", 2)],
)
def test_what_could_not_be_measured_is_exit_code_3(folders: tuple[Path, Path], what: str, tier: int) -> None:
    result = gate(folders, Scripted(spoil(what)), tiers=(tier,))
    assert (result.verdict, result.exit_code) == (GateVerdict.UNUSABLE, 3)


def test_a_regression_outranks_a_tier_that_could_not_be_measured(folders: tuple[Path, Path]) -> None:
    def change(side: str, script: str, answer: dict[str, Any]) -> None:
        if side == "head" and script == "simulate":
            answer["workloads"]["mixed"]["steps"] += 1
        spoil("turns")(side, script, answer)

    result = gate(folders, Scripted(change))
    assert [t.verdict for t in result.tiers] == [GateVerdict.PASS, GateVerdict.FAIL, GateVerdict.UNUSABLE]
    assert result.exit_code == 1


def answered(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "answer.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no readable answer"), ('{"specification_sha256": "x"', "no readable answer"),
        ("[]", "another spec"),
        ('{"specification_sha256": "other"}', "another specification"),
        ('{"specification_sha256": "x", "engine": "/elsewhere"}', "measured the engine in /elsewhere"),
    ],
)  # fmt: skip
def test_answers_that_are_no_answers(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        read_answer(side("head", "/b"), "wall", answered(tmp_path, text), {"sha256": "x"})


def test_a_script_that_dies_or_hangs_is_told_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.gate.scripts_runner.SCRIPTS", tmp_path)
    (tmp_path / "dies.py").write_text("raise SystemExit('no such model')")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    (tmp_path / "silent.py").write_text("")
    who = side("base", tmp_path)
    with pytest.raises(Unusable, match=r"base: dies failed \(exit 1\): no such model"):
        run_script(who, "dies", {"sha256": "x"}, 30.0)
    with pytest.raises(Unusable, match=r"no answer in 0\.3 s"):
        run_script(who, "hangs", {"sha256": "x"}, 0.3)
    with pytest.raises(Unusable, match="no readable answer"):
        run_script(who, "silent", {"sha256": "x"}, 30.0)


def test_wanted_changes_are_accepted_once_with_their_reason(tmp_path: Path) -> None:
    base, head = tmp_path / "base.toml", tmp_path / "head.toml"
    old = '[[accept]]\nwhat = "1/mixed/*"\nreason = "of last week"\n'
    base.write_text(old)
    head.write_text(old + '[[accept]]\nwhat = "1/burst/steps"\nreason = "larger steps are wanted"\n')
    accepted = read_acceptances(head, base)
    assert [entry.what for entry in accepted] == ["1/burst/steps"]
    found = acknowledge(
        1,
        [
            Finding(name="burst/steps", verdict=GateVerdict.FAIL),
            Finding(name="mixed/steps", verdict=GateVerdict.FAIL),
        ],
        accepted,
    )
    assert [(f.verdict, f.acknowledged) for f in found] == [
        (GateVerdict.PASS, "larger steps are wanted"), (GateVerdict.FAIL, ""),
    ]  # fmt: skip
    assert (
        acknowledge(0, [Finding(name="burst/steps", verdict=GateVerdict.FAIL)], accepted)[0].verdict == "FAIL"
    )


@pytest.mark.parametrize(
    "text", ["accept = 3", '[[accept]]\nwhat = "1/*"\n', '[[accept]]\nwhat = "x"\nreason = " "\n', "x = "]
)
def test_an_acknowledgement_that_cant_be_read_is_a_mistake_not_a_pass(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InvalidInputError, match="reason"):
        read_acceptances(tmp_path / "a.toml", tmp_path / "none.toml")


def test_an_accepted_failure_passes_in_the_gate(folders: tuple[Path, Path]) -> None:
    def change(side: str, script: str, answer: dict[str, Any]) -> None:
        if side == "head" and script == "simulate":
            answer["workloads"]["mixed"]["steps"] += 1

    (folders[1] / ACK_FILE).write_text('[[accept]]\nwhat = "1/mixed/steps"\nreason = "wanted"\n')
    result = gate(folders, Scripted(change), tiers=(1,))
    assert result.exit_code == 0
    assert result.reason.endswith("acknowledged")
    assert "accepted: wanted" in markdown(result)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repo"
    (folder / "engine").mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    for number in (1, 2):
        (folder / "engine" / "__init__.py").write_text(f"VERSION = {number}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", str(number))
        git(folder, "tag", f"v{number}")
    monkeypatch.chdir(folder)
    return folder


def test_revisions_are_exported_and_the_repository_is_left_alone(repository: Path, tmp_path: Path) -> None:
    run, request = Scripted(), GateRequest(out=tmp_path / "out", base="v1", head="v2")
    result = Gate(request, run=run, turns=one_after_the_other(run), control=calm).result()
    assert result.exit_code == 0
    assert (Path(result.base.folder) / "engine" / "__init__.py").read_text() == "VERSION = 1\n"
    assert (Path(result.head.folder) / "engine" / "__init__.py").read_text() == "VERSION = 2\n"
    assert result.base.commit != result.head.commit
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_an_unknown_revision_is_a_usage_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nosuch"):
        Gate(GateRequest(out=tmp_path / "out", base="nosuch"), run=Scripted()).result()


def test_a_base_without_an_engine_is_no_baseline(repository: Path, tmp_path: Path) -> None:
    git(repository, "rm", "-q", "-r", "--cached", "engine")
    git(repository, "commit", "-q", "-m", "gone")
    git(repository, "tag", "v3")
    result = Gate(GateRequest(out=tmp_path / "out", base="v3", head="v2"), run=Scripted()).result()
    assert (result.verdict, result.exit_code) == (GateVerdict.UNUSABLE, 3)
    assert "no baseline" in result.reason


def test_what_is_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    result = gate(folders, Scripted(itl_ms=0.2))
    write_results(result, tmp_path)
    assert GateResult.model_validate_json((tmp_path / "gate.json").read_bytes()) == result
    text = (tmp_path / "gate.md").read_text()
    assert text.startswith(MARKER)
    assert "## Performance gate: FAIL" in text
    assert "| itl_ms | FAIL |" in text
    suites = ElementTree.fromstring((tmp_path / "junit.xml").read_text())
    failures = {s.get("name"): s.get("failures") for s in suites}
    assert failures == {"tier 0": "0", "tier 1": "0", "tier 2": "1"}


def test_junit_has_no_green_case_for_what_is_unknown(folders: tuple[Path, Path]) -> None:
    result = gate(folders, Scripted(spoil("turns")), tiers=(2,))
    suite = ElementTree.fromstring(junit(result))[0]
    assert suite.get("errors") == "1"
    assert json.dumps(result.model_dump(mode="json"))


def test_a_place_for_the_results_is_needed_before_anything_runs(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["gate", "--base-dir", str(folders[0]), "--head-dir", str(folders[1])]
    assert main([*words, "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: out='{tmp_path / 'file'}': a folder that can be written"
    )
    assert (tmp_path / "file").read_text() == ""
