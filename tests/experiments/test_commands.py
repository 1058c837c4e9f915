"""The command line: what is printed where, exit codes, one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from experiments import bench_cell, control, session
from experiments.commands import register
from experiments.models import SweepResult
from tests.experiments.world import World


@pytest.fixture
def app() -> typer.Typer:
    found = typer.Typer()
    register(found)
    return found


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> World:
    """The command with a simulated machine in the place of the real runner."""
    world = World(effects={"64": 0.5, "256": 0.6})
    monkeypatch.setattr(bench_cell.BenchRunner, "__call__", lambda _self, cell, load: world(cell, load))
    monkeypatch.setattr(bench_cell.BenchRunner, "probe", lambda _self: world.probe())
    monkeypatch.setattr(control.ControlKernel, "__call__", lambda _self: world.control())
    monkeypatch.setattr(session, "entry_points", lambda group: [])
    return world


def sweep(app: typer.Typer, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["sweep", *words])
    return done.exit_code, done.stdout, done.stderr


def test_json_prints_one_object_and_nothing_else(app: typer.Typer, simulated: World, tmp_path: Path) -> None:
    words = ("--param", "chunk_size", "--blocks", "2", "--seed", "1", "--runs-dir", str(tmp_path), "--json")
    code, out, err = sweep(app, *words)
    assert code == 0
    result = SweepResult.model_validate_json(out)
    assert result.factor == "chunk_size"
    assert result.baseline == 2048
    assert [level.value for level in result.levels] == [64, 256, 512, 1024, 2048]
    assert "verdict" in err


def test_the_table_goes_to_stdout_with_all_that_is_promised(
    app: typer.Typer, simulated: World, tmp_path: Path
) -> None:
    words = ("--param", "chunk_size", "--blocks", "4", "--seed", "1", "--runs-dir", str(tmp_path))
    code, out, _err = sweep(app, *words)
    assert code == 0
    for word in (
        "p50 ms",
        "itl",
        "p99 ms",
        "goodput",
        "BETTER",
        "hypothesis",
        "A/A",
        "boundary",
        "fresh seeds",
    ):
        assert word in " ".join(out.split()), word


def test_plan_runs_nothing(app: typer.Typer, simulated: World, tmp_path: Path) -> None:
    words = ("--param", "chunk_size", "--plan", "--budget", "9m", "--runs-dir", str(tmp_path), "--json")
    code, out, _err = sweep(app, *words)
    plan = json.loads(out)
    assert code == 0
    assert simulated.seen == []
    assert list(tmp_path.iterdir()) == []
    assert plan["blocks_in_budget"] >= 4
    assert plan["estimate_s"] <= 540
    assert len(plan["schedule"]) == plan["blocks"] * 6
    assert plan["fixed"] == {"max_num_seqs": 32}


def test_ctrl_c_exits_130_and_resume_goes_on(app: typer.Typer, simulated: World, tmp_path: Path) -> None:
    simulated.interrupt_at = 3
    words = ("--param", "chunk_size", "--blocks", "2", "--values", "64", "--runs-dir", str(tmp_path))
    code, _out, err = sweep(app, *words)
    assert code == 130
    assert "error: interrupted" in err
    (folder,) = tmp_path.glob("sweep-*")
    code, out, _err = sweep(app, "--resume", folder.name, "--runs-dir", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["status"] == "complete"
    assert len(simulated.seen) == 6


def test_a_baseline_that_never_runs_exits_3(app: typer.Typer, simulated: World, tmp_path: Path) -> None:
    simulated.faults["2048"] = [RuntimeError("no model")] * 4
    words = ("--param", "chunk_size", "--blocks", "2", "--runs-dir", str(tmp_path), "--json")
    code, out, err = sweep(app, *words)
    assert code == 3
    assert json.loads(out)["valid"] is False
    assert "no model" in err
    assert "Traceback" not in err


def test_reporters_are_found_by_entry_point_and_a_broken_one_is_told(
    app: typer.Typer, simulated: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        def __init__(self, name: str, function: object) -> None:
            self.name = name
            self._function = function

        def load(self) -> object:
            return self._function

    def write(folder: Path) -> Path:
        (folder / "page.html").write_text("x")
        return folder / "page.html"

    def broken(folder: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(session, "entry_points", lambda group: [Entry("bad", broken), Entry("html", write)])
    words = (
        "--param",
        "chunk_size",
        "--blocks",
        "2",
        "--values",
        "64",
        "--runs-dir",
        str(tmp_path),
        "--json",
    )
    code, out, err = sweep(app, *words)
    report = json.loads(out)["report"]
    assert code == 0
    assert Path(report).name == "page.html"
    assert json.loads((Path(report).parent / "sweep.json").read_text())["report"] == report
    assert "report bad could not be written: OSError: disk full" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: param=None"),
        (["--param", "speed"], "error: param='speed': one of "),
        (["--param", "chunk_size", "--values", "64,big"], "error: chunk_size='big': a whole number"),
        (["--param", "chunk_size", "--values", "8"], "error: chunk_size=8: at least max_num_seqs (32)"),
        (["--param", "chunk_size", "--values", "2048"], "error: values='2048': at least one level beside"),
        (["--param", "chunk_size", "--max-num-batched-tokens", "64"], "error: max_num_batched_tokens=64"),
        (["--param", "chunk_size", "--slo", "ttft=3"], "error: slo='ttft=3'"),
        (["--param", "chunk_size", "--blocks", "0"], "error: blocks=0: at least 1"),
        (["--param", "chunk_size", "--seed", "-1"], "error: seed=-1: at least 0"),
        (["--param", "chunk_size", "--budget", "soon"], "error: budget='soon'"),
        (["--param", "chunk_size", "--metric", "speed"], "error: metric='speed'"),
        (["--param", "chunk_size", "--workload", "none"], "error: workload='none'"),
        (["--param", "chunk_size", "--block-size", "0"], "not with the other settings: block_size=0"),
        (["--param", "block_size", "--workload", "random", "--request-rate", "2"], "error: request-rate='2'"),
        (["--resume", "nothing"], "error: sweep='nothing'"),
        (
            ["--resume", "nothing", "--param", "chunk_size"],
            "error: param='chunk_size': nothing beside --resume",
        ),
    ],
)
def test_mistakes_cost_one_line_and_exit_2(
    app: typer.Typer, tmp_path: Path, words: list[str], line: str
) -> None:
    code, out, err = sweep(app, *words, "--runs-dir", str(tmp_path / "runs"))
    assert code == 2
    assert out == ""
    assert line in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_factors_explains(app: typer.Typer) -> None:
    runner = CliRunner()
    assert (
        json.loads(runner.invoke(app, ["factors", "chunk_size", "--json"]).stdout)["vllm"]
        == "--max-num-batched-tokens"
    )
    assert "SGLang" in runner.invoke(app, ["factors", "chunk_size"]).stdout
    assert len(json.loads(runner.invoke(app, ["factors", "--json"]).stdout)["factors"]) == 20
    assert "stream_interval" in runner.invoke(app, ["factors"]).stdout
    assert runner.invoke(app, ["factors", "nope"]).exit_code == 2
