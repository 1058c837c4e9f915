"""Two real processes that take turns: who works when, and what happens when one of them ends early."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.gate import scripts_runner
from experiments.gate.models import Side, Unusable
from experiments.gate.scripts_runner import run_turns
from experiments.gate.tier2 import METRICS
from experiments.gate.workloads import with_sha256
from tests.gate.sides import side
from tests.helpers.tiny_model import make_tiny_model

SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parent))
from baton import Baton
import common

specification, baton = common.read_specification(), Baton()
me = Path.cwd().name
baton.pass_on()
for turn in range(specification["turns"]):
    baton.wait()
    with open(specification["log"], "a") as log:
        log.write(f"{me} begins {turn}\\n")
        log.flush()
        if [me, turn] == specification.get("dies"):
            raise SystemExit("out of memory")
        log.write(f"{me} ends {turn}\\n")
    baton.pass_on()
common.whose_engine = lambda: os.getcwd()
common.answer(specification, me=me)
"""


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Side]:
    scripts = tmp_path / "scripts"
    shutil.copytree(scripts_runner.SCRIPTS, scripts)
    (scripts / "relay.py").write_text(SCRIPT)
    monkeypatch.setattr(scripts_runner, "SCRIPTS", scripts)
    for name in ("base", "head"):
        (tmp_path / name).mkdir()
    return [side(name, tmp_path / name) for name in ("base", "head")]


def relay(sides: list[Side], log: Path, timeout_s: float = 60.0, **more: Any) -> tuple[Any, list[str]]:
    before: list[str] = []
    specification = with_sha256({"log": str(log), "turns": 3, **more})
    answers = run_turns(sides, "relay", specification, timeout_s, lambda who: before.append(who.name))
    return answers, before


def test_one_works_at_a_time_and_who_begins_alternates(sides: list[Side], tmp_path: Path) -> None:
    answers, before = relay(sides, tmp_path / "log")
    order = ["base 0", "head 0", "head 1", "base 1", "base 2", "head 2"]
    expected = [f"{who} {what} {turn}" for who, turn in map(str.split, order) for what in ("begins", "ends")]
    assert (tmp_path / "log").read_text().splitlines() == expected
    assert before[:6] == [name.split()[0] for name in order]
    assert {name: answer["me"] for name, answer in answers.items()} == {"base": "base", "head": "head"}


def test_a_side_that_dies_in_its_turn_is_told_with_its_last_line(sides: list[Side], tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"head: relay failed \(exit 1\): out of memory"):
        relay(sides, tmp_path / "log", dies=["head", 1])


def test_a_side_that_dies_before_its_first_turn_is_told(sides: list[Side], tmp_path: Path) -> None:
    (Path(sides[0].folder) / "engine.py").write_text("")
    (scripts_runner.SCRIPTS / "relay.py").write_text("raise SystemExit('no such model')")
    with pytest.raises(Unusable, match=r"base: relay failed \(exit 1\): no such model"):
        relay(sides, tmp_path / "log")


def test_a_side_that_never_ends_its_turn_does_not_hang_the_gate(sides: list[Side], tmp_path: Path) -> None:
    (scripts_runner.SCRIPTS / "relay.py").write_text("import time; time.sleep(60)")
    with pytest.raises(Unusable, match="base: relay did not end its turn in time"):
        relay(sides, tmp_path / "log", timeout_s=0.5)


def test_fewer_turns_than_the_other_side_are_no_answer(sides: list[Side], tmp_path: Path) -> None:
    lazy = SCRIPT.replace('range(specification["turns"])', 'range(3 if me == "base" else 2)')
    (scripts_runner.SCRIPTS / "relay.py").write_text(lazy)
    with pytest.raises(Unusable, match="head: relay took fewer turns than the other side"):
        relay(sides, tmp_path / "log")


def test_the_engine_takes_turns(tmp_path: Path) -> None:
    """The script that tier 2 runs, in two processes on this very tree."""
    root = Path(__file__).resolve().parents[2]
    model = make_tiny_model(tmp_path / "model")
    load = {
        "light": {"requests": 2, "input": 12, "output": 4},
        "saturated": {"requests": 3, "input": 8, "output": 3, "repeats": 3},
    }
    engine = {"model": str(model), "num_threads": 1, "max_model_len": 64, "kv_cache_memory_bytes": 2**22}
    specification = with_sha256({"engine": engine, "seed": "0/0", **load})
    turns: list[str] = []
    sides = [side("base", root), side("head", root)]
    answers = run_turns(sides, "wall", specification, 120.0, lambda who: turns.append(who.name))
    assert turns[:6] == ["base", "head", "head", "base", "base", "head"]
    for answer in answers.values():
        assert {name: len(values) for name, values in answer["turns"].items()} == {
            "ttft_ms": 2, "itl_ms": 2, "output_tok_s": 3,
        }  # fmt: skip
        assert all(value > 0 for name in METRICS for value in answer["turns"][name])
    assert json.dumps(answers)
