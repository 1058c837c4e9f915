"""The builtin target: a real server process on a tiny model, its trace in the bundle, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from engine.errors import InvalidInputError
from tests.helpers.tiny_model import make_tiny_model
from tests.workbench.conftest import environment
from workbench.bench import BenchSpec, run_bench
from workbench.errors import TargetError
from workbench.manifest import SweepRef
from workbench.runstore import RunStore
from workbench.targets.builtin import BuiltinTarget
from workloads import Arrivals, RequestClass, WorkloadSpec

WORKLOAD = WorkloadSpec(
    name="tiny",
    arrivals=Arrivals(kind="poisson", rate=50.0),
    classes=(
        RequestClass(name="chat", weight=2, input_tokens=(8, 24), output_tokens=6),
        RequestClass(name="document", input_tokens=(100, 160), output_tokens=3),
    ),
    num_requests=9,
    slo="ttft:60000 itl:60000",
)
ENGINE = {
    "dtype": "float32",
    "num_threads": 1,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 80,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> RunStore:
    return RunStore(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run(model, store, tmp_path_factory):
    spec = BenchSpec.create(
        workload=WORKLOAD, engine={"model": model, **ENGINE}, seed=2, nonce="n", warmup_requests=2,
        sweep=SweepRef(id="s1", level=64, block=0, position=1), tags=("sweep",),
    )  # fmt: skip
    # A folder of ours that happens to be called "engine" must not take the engine's place.
    folder = tmp_path_factory.mktemp("work")
    (folder / "engine").mkdir()
    (folder / "engine" / "__init__.py").write_text("raise RuntimeError('wrong engine')")
    with contextlib.chdir(folder):
        return run_bench(spec, store)


def test_the_run_is_complete(run, store):
    manifest, metrics = run.manifest, run.metrics()
    assert manifest.status == "complete"
    assert metrics["counts"]["ok"] == metrics["counts"]["offered"] == 9
    assert metrics["counts"]["output_tokens"] == 6 * 6 + 3 * 3
    assert metrics["goodput"]["ratio"] == 1
    assert set(metrics["groups"]) == {"chat", "document"}
    assert (manifest.sweep.id, manifest.sweep.level) == ("s1", 64)
    assert [info.sweep_id for info in store.list()] == ["s1"]
    assert not [reason for reason in metrics["validity"]["reasons"] if "config" in reason]


def test_the_configuration_is_the_servers_own_word(run, model):
    target = run.manifest.target
    assert target.requested == {"model": model, **ENGINE}
    assert {name: target.echo[name] for name in ENGINE} == ENGINE
    assert target.echo["vocab_size"] == 384  # resolved facts stand beside the settings
    assert target.base_url.startswith("http://127.0.0.1:")


def test_engine_rows_join_client_rows(run):
    requests, events, steps = run.table("requests"), run.table("events"), run.table("steps")
    measured = requests[requests["phase"] == "measure"].set_index("request_id")
    for kind in ("queued", "first_token", "finished"):
        rows = events[(events["kind"] == kind) & events["request_id"].isin(measured.index)].set_index(
            "request_id"
        )
        assert sorted(rows.index) == sorted(measured.index)
    queued = events[events["kind"] == "queued"].set_index("request_id")["t_ns"]
    first = events[events["kind"] == "first_token"].set_index("request_id")["t_ns"]
    finished = events[events["kind"] == "finished"].set_index("request_id")["tokens"]
    for request_id, row in measured.iterrows():
        # One clock: sent before queued, made before received.
        assert row["sent_ns"] <= queued[request_id] <= first[request_id] <= row["first_token_ns"]
        assert row["output_tokens"] == finished[request_id] == row["max_tokens"]
        assert row["output_tokens_source"] == "token_ids"
    assert (steps["prefill_tokens"] + steps["decode_tokens"]).max() <= 64
    assert run.manifest.tables["steps"].rows == len(steps)
    assert run.manifest.tables["events"].rows == len(events)


def test_nothing_is_left_behind(run):
    assert not (run.path / "trace").exists()
    assert (run.path / "server.log").read_text()
    for process in psutil.process_iter(["cmdline"]):
        assert str(run.path) not in " ".join(process.info["cmdline"] or [])


def test_the_same_run_again_gives_the_same_tokens(run, model, store):
    spec = BenchSpec.create(
        workload=WORKLOAD, engine={"model": model, **ENGINE}, seed=2, nonce="n", keep_chunks=False
    )
    again = run_bench(spec, store)
    outputs = [
        r.table("requests").query("phase == 'measure'").set_index("index")["output_sha256"].to_dict()
        for r in (run, again)
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].values())) == 9
    assert again.table("chunks") is None
    assert again.metrics()["latency"]["itl"]["n"] == run.metrics()["latency"]["itl"]["n"]


def test_a_server_that_dies_under_load(model, store):
    """Killed when the first tokens flow: the bundle says so, and holds what was measured until then."""
    long = WORKLOAD.model_copy(update={"arrivals": Arrivals(kind="closed", max_concurrency=2)})
    killed = []

    def kill(progress) -> None:
        if progress.phase == "measuring" and progress.ok >= 3 and not killed:
            folder = max(store.root.iterdir(), key=lambda p: p.name)
            for process in psutil.process_iter(["cmdline"]):
                if (
                    "engine.server" in (line := " ".join(process.info["cmdline"] or []))
                    and folder.name in line
                ):
                    killed.append(process.pid)
                    process.kill()

    spec = BenchSpec.create(workload=long, engine={"model": model, **ENGINE}, num_requests=3000)
    run = run_bench(spec, store, progress=kill)
    assert killed
    assert run.manifest.status == "failed"
    assert "killed by SIGKILL" in run.manifest.error
    metrics = run.metrics()
    assert metrics["counts"]["ok"] >= 3
    assert metrics["counts"]["failed"] >= 1
    assert run.manifest.error in metrics["validity"]["reasons"]
    assert run.table("steps") is not None


def test_a_setting_that_the_engine_refuses_starts_nothing(store):
    before = len(store.list())
    with pytest.raises(InvalidInputError, match="block_size"):
        run_bench(BenchSpec.create(workload=WORKLOAD, engine={"block_size": 0}), store)
    assert len(store.list()) == before


def test_a_server_that_is_not_ready_in_time(model, tmp_path):
    with (
        pytest.raises(TargetError, match=r"not ready after 0\.2 s"),
        BuiltinTarget({"model": model}, tmp_path, 0.2),
    ):
        pass
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])
    ]


def test_no_server_outlives_a_killed_workbench(model, tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from workbench.targets.builtin import BuiltinTarget\n"
        "with BuiltinTarget({'model': sys.argv[1], 'num_threads': 1}, Path(sys.argv[2]), 60) as target:\n"
        "    print(*target.pids(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, model, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    server = psutil.Process(int(parent.stdout.readline()))
    family = [server, *server.children(recursive=True)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    _gone, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
