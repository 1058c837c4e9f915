"""A profiled run of the builtin engine, from the flag to kernels on the timeline."""

from __future__ import annotations

import json

import pytest

from engine.errors import InvalidInputError
from tests.helpers.tiny_model import make_tiny_model
from tests.trace.schema import check_trace
from tests.trace.test_perfetto import load
from workbench.bench import BenchSpec, run_bench
from workbench.cli import main
from workbench.profiling.collect import measure_distortion
from workbench.profiling.flags import profile_window
from workbench.profiling.stacks import STACKS
from workbench.profiling.window import ProfileSession, ProfileWindow
from workbench.runstore import RunStore
from workbench.timeline.perfetto import KERNELS, export
from workloads import Arrivals, RequestClass, WorkloadSpec

WORKLOAD = WorkloadSpec(
    name="tiny",
    arrivals=Arrivals(kind="burst"),
    classes=(RequestClass(name="chat", input_tokens=(8, 24), output_tokens=40),),
    num_requests=6,
)
ENGINE = {
    "dtype": "float32",
    "num_threads": 1,
    "num_gpu_blocks_override": 80,
    "attention_backend": "reference",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model = str(make_tiny_model(tmp_path_factory.mktemp("model")))
    spec = BenchSpec.create(
        workload=WORKLOAD,
        engine={"model": model, **ENGINE},
        warmup_requests=1,
        nonce="n",
        profile=ProfileWindow(after_s=0.0, num_steps=8, max_seconds=30.0),
    )
    return run_bench(spec, RunStore(tmp_path_factory.mktemp("runs")))


def test_the_run_is_flagged_and_its_operators_are_a_table(run):
    assert "profiled" in run.manifest.tags
    assert run.manifest.machine["telemetry_interval_s"] == 0.5
    assert any("profiled" in reason for reason in run.metrics()["validity"]["reasons"])
    assert any("8 steps, coverage 100%" in note for note in run.manifest.notes), run.manifest.notes
    kernels = run.arrow("kernels").to_pylist()
    steps = {row["step_id"]: row for row in run.arrow("steps").to_pylist()}
    inside = {row["step_id"] for row in kernels if row["cls"] == "annotation"} - {None}
    assert len(inside) == 8
    # The profiler's clock, shifted to ours: every window lies in its step.
    for row in kernels:
        if row["cls"] == "annotation" and row["step_id"] is not None:
            step = steps[row["step_id"]]
            assert step["t_start"] - 2_000_000 <= row["ts_ns"] <= step["t_end"]
    assert {row["name"] for row in kernels} >= {"aten::mm", "aten::silu"}
    assert run.manifest.tables["kernels"].rows == len(kernels)
    stored = json.loads((run.path / "profile.json").read_text())
    assert stored["windows"][0]["report"]["refusal"] == "no GPU work in the trace"
    assert not (run.path / "trace").exists()


def test_operators_are_on_the_timeline(run, tmp_path):
    export(run, tmp_path / "trace.json")
    tracks = check_trace(load(tmp_path / "trace.json"))
    names = {s["name"] for (pid, _), slices in tracks.items() if pid == KERNELS for s in slices}
    assert {"aten::mm", "aten::silu"} <= names


def test_the_command_looks_into_runs_and_traces(run, capsys):
    root = str(run.path.parent)
    assert main(["profile", run.id, "--runs-dir", root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["windows"][0]["operators"]
    assert found["windows"][0]["steps_ns"] > 0
    assert not any("stacks" in note for note in found["notes"])
    assert main(["profile", str(run.path / "kineto-window-0.json.gz"), "--runs-dir", root]) == 0
    out = capsys.readouterr().out
    assert "no GPU verdict: no GPU work in the trace" in out
    assert "  steps took " in out
    (run.path / STACKS).write_text("{}")
    assert main(["profile", run.id, "--runs-dir", root]) == 0
    assert f"Python stacks: {run.path / STACKS}" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["nothing-here.json", "no-such-run"])
def test_what_is_not_there_is_one_line(what, tmp_path, capsys):
    assert main(["profile", what, "--runs-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_flags():
    assert profile_window({}) is None
    assert profile_window({"profile": False}) is None
    assert profile_window({"profile": True, "profile_steps": 7}) == ProfileWindow(num_steps=7)
    with pytest.raises(InvalidInputError, match="profile-steps=7: only with --profile"):
        profile_window({"profile_steps": 7})
    with pytest.raises(InvalidInputError, match="profile-seconds=1000"):
        profile_window({"profile": True, "profile_seconds": 1000.0})


def test_a_server_that_refuses_is_a_note(tmp_path):
    window = ProfileWindow(after_s=0.0)
    with ProfileSession(window, "http://127.0.0.1:9", [], tmp_path, {}) as session:
        session.load_began()
        session._thread.join(20)
    assert len(session.problems) == 1
    assert session.problems[0].startswith("profile: /start_profile:")


def test_a_load_that_ends_first_is_a_note(tmp_path):
    with ProfileSession(ProfileWindow(after_s=60.0), "http://127.0.0.1:9", [], tmp_path, {}) as session:
        session.load_began()
    assert session.problems == ["profile: the load ended before the window was to begin"]
    with ProfileSession(None, "http://127.0.0.1:9", [], tmp_path, {}) as session:
        pass
    assert (session.problems, session.active) == ([], False)


def test_distortion_compares_steps_of_one_batch_size():
    import pyarrow as pa

    rows = [
        {
            "step_id": i,
            "t_start": 0,
            "t_end": (30 if i in (4, 5, 6) else 20) * (1 + i % 2),
            "num_prefill_reqs": 0,
            "num_decode_reqs": 1 + i % 2,
        }
        for i in range(12)
    ]
    table = pa.Table.from_pylist(rows)
    assert measure_distortion(table, [4, 5, 6]) == 1.5
    assert measure_distortion(table, [4]) is None
    assert measure_distortion(None, [4, 5, 6]) is None
