"""The proposed experiment sends the run's own traffic, whatever that was."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.diagnose import diagnose_run
from experiments.diagnosis.next_step import forward_line, sweep_line
from experiments.diagnosis.workload_file import WORKLOAD_FILE, as_toml, write_workload
from tests.diagnosis.cases import HEALTHY, World
from tests.diagnosis.test_command import store, world_of
from tests.diagnosis.test_planted import make_sweep
from tests.diagnosis.world import manifest
from workbench.atomic import write_json
from workbench.cli import main
from workbench.commands.request import BenchFlags, make_spec
from workbench.manifest import Manifest
from workbench.runstore import RunStore
from workloads import WorkloadSpec, load_workload, preset_names


def manifest_of(world: World, flags: BenchFlags) -> Manifest:
    """The manifest of ``bench`` with these flags."""
    spec = make_spec(flags)
    workload = {"sha256": spec.workload.sha256, **spec.workload.model_dump(mode="json")}
    return manifest(world).model_copy(
        update={
            "id": "run",
            "workload": workload,
            "workload_sha256": spec.workload.sha256,
            "load": {"rate": spec.rate or spec.workload.arrivals.rate},
        }
    )


def flags_of(line: str) -> dict[str, str]:
    words = shlex.split(line)
    return dict(zip(words[2::2], words[3::2], strict=False))


FLAGS = [
    BenchFlags(workload="chat", request_rate="inf"),
    BenchFlags(workload="chat", max_concurrency=16),
    BenchFlags(dataset_name="random", random_input_len=300, random_range_ratio=0.5, request_rate="3"),
    BenchFlags(workload="sessions", max_concurrency=4),
    BenchFlags(workload="chat-and-documents", request_rate="2", burstiness=0.5),
]


@pytest.mark.parametrize("flags", FLAGS, ids=["burst", "closed", "lengths", "sessions", "bursty"])
def test_traffic_that_is_no_preset_comes_as_a_file(tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    own = manifest_of(HEALTHY, flags)
    bundle = RunBundle.of("run", own, {}, tmp_path)
    line = sweep_line(bundle, "max_num_seqs", [4, 8], "ttft_p50")
    assert flags_of(line)["--workload"] == WORKLOAD_FILE
    assert ("--request-rate" in line) == (flags.request_rate not in (None, "inf"))
    write_workload(bundle)
    assert load_workload(WORKLOAD_FILE).sha256 == own.workload_sha256
    make_sweep(line)


def test_a_preset_is_named_and_needs_no_file(tmp_path):
    own = manifest_of(HEALTHY, BenchFlags(workload="chat", request_rate="2"))
    bundle = RunBundle.of("run", own, {}, tmp_path)
    words = flags_of(sweep_line(bundle, "chunk_size", [64, 128], "ttft_p50"))
    assert (words["--workload"], words["--request-rate"]) == ("chat", "2")
    write_workload(bundle)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", preset_names())
def test_a_spec_survives_its_file(tmp_path, name):
    spec = WorkloadSpec.create(
        {**load_workload(name).model_dump(), "description": 'quotes " \\ \U0001f600 \x7f \n end'}
    )
    path = tmp_path / "own.toml"
    path.write_text(as_toml(spec), encoding="utf-8")
    assert load_workload(str(path)) == spec


def test_a_data_file_is_named_by_its_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"prompt": "hello", "output_tokens": 4})]
    Path("own.jsonl").write_text("\n".join(lines), encoding="utf-8")
    flags = BenchFlags(
        dataset_name="custom", traffic={"dataset_path": "own.jsonl"}, request_rate="1", num_prompts=1
    )
    text = as_toml(make_spec(flags).workload)
    assert f'path = "{tmp_path / "own.jsonl"}"' in text


def test_the_grid_is_measured_with_the_settings_of_the_run(tmp_path):
    own = manifest_of(HEALTHY, BenchFlags(workload="chat", request_rate="2"))
    settings = {"model": "smollm2-135m", "quantization": "int8", "max_num_seqs": 4, "dtype": "auto"}
    own = own.model_copy(update={"target": own.target.model_copy(update={"requested": settings})})
    line = forward_line(RunBundle.of("run", own, {}, tmp_path))
    assert line == "workbench forward --model smollm2-135m --quantization int8"


def test_an_imported_run_names_no_traffic(tmp_path):
    bundle = RunBundle.of("run", manifest(HEALTHY), {}, tmp_path)
    assert "--workload" not in sweep_line(bundle, "chunk_size", [64, 128], "ttft_p50")


def test_diagnose_leaves_the_file_and_sweep_takes_the_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    world = replace(world_of("two places in the batch"), engine={"max_num_seqs": 2})
    store(tmp_path / "runs", world, "run")
    own = manifest_of(world, BenchFlags(workload="chat", max_concurrency=16))
    write_json(tmp_path / "runs" / "run" / "manifest.json", own.model_dump(mode="json"))
    found = diagnose_run(RunStore(tmp_path / "runs").open("run"))
    assert found.top is not None
    assert found.top.next is not None
    assert flags_of(found.top.next)["--workload"] == f"runs/run/{WORKLOAD_FILE}"
    assert main([*shlex.split(found.top.next)[1:], "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["levels"] == [2, 4, 8]
