"""Tiers 0 and 1 with the real scripts on real copies of the engine, with and without something planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.gate_plants import copy_tree, waste_budget
from experiments.gate.arms import code_changed
from experiments.gate.models import GateVerdict, Side, Unusable
from experiments.gate.run import Gate, GateRequest
from experiments.gate.scripts_runner import run_script
from experiments.gate.tier0 import run_tier0
from experiments.gate.tier1 import run_tier1
from experiments.gate.workloads import scheduler_workloads
from tests.gate.sides import side
from tests.helpers.tiny_model import make_tiny_model

_ANSWERS: dict[tuple[str, str, str], dict[str, Any]] = {}


def run_once(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The real script, once for each folder and question."""
    key = (side.folder, script, specification["sha256"] + json.dumps(specification.get("engine")))
    if key not in _ANSWERS:
        _ANSWERS[key] = run_script(side, script, specification, timeout_s)
    return _ANSWERS[key]


ENGINE = {"dtype": "float32", "num_threads": 1, "attention_backend": "reference", "max_num_seqs": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("trees") / "base")


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("trees") / "again")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "model", max_position_embeddings=1024))


@pytest.fixture(scope="module")
def bug(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tree(tmp_path_factory.mktemp("trees") / "bug")
    waste_budget(tree)
    return tree


def test_there_are_sixteen_workloads_and_no_two_are_alike() -> None:
    workloads = scheduler_workloads()
    assert len(workloads) == 16
    assert len({w["name"] for w in workloads}) == 16
    assert len({json.dumps([w["config"], w["requests"]], sort_keys=True) for w in workloads}) == 16


def test_a_scheduler_bug_fails_tier_1(base: Path, bug: Path) -> None:
    worse = run_tier1(side("base", base), side("head", bug), run_once)
    assert worse.verdict is GateVerdict.FAIL
    failed = {f.name for f in worse.findings if f.verdict is GateVerdict.FAIL}
    assert "long-prompts/ttft_p50_ns" in failed
    assert "long-prompts/steps" in failed
    assert code_changed(base, bug)
    assert not code_changed(base, base)


def test_this_tree_passes_tiers_0_and_1_against_a_copy_of_itself(
    base: Path, again: Path, model: str, tmp_path: Path
) -> None:
    """What CI asks of every change: the same tokens and the same virtual times, to the last digit, from two
    copies of the tree in processes of their own."""
    request = GateRequest(
        out=tmp_path / "out", base_dir=base, head_dir=again, tiers=(0, 1), model=model, engine=ENGINE
    )
    result = Gate(request, run=run_once).result()
    assert (result.verdict, result.exit_code) == (GateVerdict.PASS, 0)
    assert [(tier.tier, tier.verdict) for tier in result.tiers] == [
        (0, GateVerdict.PASS), (1, GateVerdict.PASS),
    ]  # fmt: skip
    assert [len(tier.findings) for tier in result.tiers] == [16, 16]
    assert {finding.text for tier in result.tiers for finding in tier.findings} == {"identical"}


def test_every_workload_exercises_what_its_name_says(base: Path) -> None:
    from experiments.gate.workloads import with_sha256

    answer = run_once(
        side("base", base), "simulate", with_sha256({"workloads": scheduler_workloads()}), 120.0
    )
    found: dict[str, Any] = answer["workloads"]
    assert all("error" not in numbers for numbers in found.values())
    assert found["short-of-blocks"]["preemptions"] > found["short-of-blocks-watermark"]["preemptions"] > 0
    assert found["shared-prefix"]["prefix_hit_tokens"] > 10_000
    assert found["cache-eviction"]["prefix_hit_tokens"] > 0
    assert found["mixed-small-budget"]["itl_p99_ns"] < found["mixed-large-budget"]["itl_p99_ns"] / 10
    assert found["mixed-one-partial-prefill"] != found["mixed-capped-prefill"]
    assert found["turns-with-eos"]["output_tokens"] < 40 * 24


def test_other_weights_give_other_tokens_and_fail_tier_0(base: Path, model: str, tmp_path: Path) -> None:
    changed = make_tiny_model(tmp_path / "changed", seed=5, max_position_embeddings=1024)

    def with_other_weights(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> Any:
        if side.name == "head":
            engine = {**specification["engine"], "model": str(changed)}
            specification = {**specification, "engine": engine}
        return run_once(side, script, specification, timeout_s)

    wrong = run_tier0(side("base", base), side("head", base), with_other_weights, model, ENGINE)
    assert wrong.verdict is GateVerdict.FAIL
    assert any("differs from token" in f.text for f in wrong.findings)


def test_a_tree_without_the_engine_is_unusable(base: Path, tmp_path: Path) -> None:
    broken = copy_tree(tmp_path / "broken")
    (broken / "engine" / "sim.py").write_text("raise RuntimeError('planted')\n", encoding="utf-8")
    with pytest.raises(Unusable, match="none of the workloads"):
        run_tier1(side("base", broken), side("head", base), run_once)
    worse = run_tier1(side("base", base), side("head", broken), run_once)
    assert worse.verdict is GateVerdict.FAIL
    assert "planted" in worse.findings[0].text


def test_the_command_on_two_folders(base: Path, bug: Path, tmp_path: Path) -> None:
    import typer

    from experiments.commands import register

    app = typer.Typer()
    register(app)
    words = ["gate", "--base-dir", str(base), "--head-dir", str(bug), "--tiers", "1", "--json"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "FAIL"
    assert result["schema_version"] == 1
    assert result == json.loads((tmp_path / "out" / "gate.json").read_text())
    assert "long-prompts/steps" in (tmp_path / "out" / "gate.md").read_text()
