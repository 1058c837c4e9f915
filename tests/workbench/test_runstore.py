"""The run store: atomic, readable after a crash, honest about folders it can't read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from engine.errors import InvalidInputError
from workbench.atomic import beside, write_json
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest, SweepRef, TargetInfo
from workbench.metrics.columns import measured, read_events
from workbench.runstore import RunStore

TARGET = TargetInfo(kind="attach", base_url="http://x", model="m")
METRICS = {"latency": {"ttft": {"p50": 12.5}}, "validity": {"valid": True, "reasons": []}}


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "runs")


def make(store: RunStore, **fields):
    writer = store.create(target=TARGET, workload={"name": "w"}, **fields)
    writer.write_metrics(METRICS)
    return writer.finish("complete")


def test_a_run_comes_back_as_it_was_written(store):
    writer = store.create(
        target=TARGET, name="n", tags=["t"], seed=4, sweep=SweepRef(id="s", level=8, block=1, position=2)
    )
    big = 2**60 + 1  # no float holds it
    table = pa.table({"at": pa.array([big, None], pa.int64()), "kind": ["a", None]})
    writer.write_table("steps", table, 3)
    writer.write_metrics(METRICS)
    writer.finish("complete", drops={"steps": 2})
    run = store.open(writer.id)
    assert run.manifest.sweep.level == 8
    assert (run.manifest.status, run.manifest.drops, run.manifest.tags) == ("complete", {"steps": 2}, ["t"])
    assert (run.manifest.tables["steps"].rows, run.manifest.tables["steps"].schema_version) == (2, 3)
    frame = run.table("steps")
    assert frame["at"][0] == big
    assert frame["at"].isna().tolist() == [False, True]
    assert run.metrics() == METRICS
    assert run.table("events") is None
    assert run.tables() == ["steps"]


def test_list_is_cheap_sorted_and_flat(store):
    first, second = make(store), make(store, tags=["x"])
    infos = store.list()
    assert [i.id for i in infos] == sorted([first.id, second.id])
    assert {i.metrics["ttft_p50"] for i in infos} == {12.5}
    assert all(i.valid and i.status == "complete" and i.error is None for i in infos)


def test_an_empty_or_absent_root_has_no_runs(tmp_path):
    assert RunStore(tmp_path / "none").list() == []
    assert not (tmp_path / "none").exists()  # looking does not make it


def test_the_root_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "env"))
    assert RunStore().root == tmp_path / "env"
    assert RunStore(tmp_path / "given").root == tmp_path / "given"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: (p / "manifest.json").write_text("{"), "manifest.json"),
        (lambda p: (p / "manifest.json").write_text("[]"), "not a JSON object"),
        (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json"),
        (lambda p: (p / "manifest.json").write_text('{"id": 3}'), "id"),
        (lambda p: (p / "manifest.json").unlink(), "no manifest.json"),
        (lambda p: (p / "metrics.json").write_text("NaN"), "metrics.json"),
    ],
)
def test_a_damaged_run_is_listed_and_harms_no_other(store, damage, words):
    good, bad = make(store), make(store)
    damage(bad.path)
    infos = {i.id: i for i in store.list()}
    assert infos[good.id].error is None
    assert words in infos[bad.id].error
    store.remove(bad.id)
    assert [i.id for i in store.list()] == [good.id]


def test_a_damaged_table_is_an_error_of_its_own(store):
    run = make(store)
    (run.path / "steps.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(RunCorruptError, match=r"steps\.parquet"):
        run.table("steps")


def test_other_folders_are_not_runs(store):
    make(store)
    (store.root / "notes").mkdir()
    (store.root / "sweep-1").mkdir()
    (store.root / "sweep-1" / "sweep.json").write_text("{}")
    (store.root / "file.txt").write_text("")
    assert len(store.list()) == 1


def test_a_crash_leaves_a_readable_run(store):
    code = (
        "import os, sys, pyarrow as pa\n"
        "from workbench.runstore import RunStore\n"
        "from workbench.manifest import TargetInfo\n"
        "w = RunStore(sys.argv[1]).create(target=TargetInfo(kind='attach'))\n"
        "w.write_table('requests', pa.table({'a': [1, 2]}), 1)\n"
        "print(w.id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9
    (info,) = store.list()
    assert info.id == done.stdout.strip()
    assert (info.status, info.error) == ("interrupted", "the process that wrote it is gone")
    assert store.open(info.id).table("requests")["a"].tolist() == [1, 2]


def test_a_run_under_way_is_running(store):
    writer = store.create(target=TARGET)
    assert store.list()[0].status == "running"
    writer.finish("failed", "boom")
    assert (store.list()[0].status, store.list()[0].error) == ("failed", "boom")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(OSError, match="disk full"):
        _fail_half_way(path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def _fail_half_way(path):
    with beside(path) as place:
        place.write_text("half")
        raise OSError("disk full")


def test_names_are_unique_and_never_overwrite(store):
    assert len({store.create(target=TARGET).id for _ in range(20)}) == 20
    assert not list(store.root.glob(".new-*"))


def test_open_by_beginning_and_by_folder(store, tmp_path, monkeypatch):
    run = make(store)
    assert store.open(run.id[:-2]).id == run.id
    assert RunStore(tmp_path / "elsewhere").open(run.path).id == run.id
    other = make(store)
    common = next(run.id[:n] for n in range(len(run.id), 0, -1) if other.id.startswith(run.id[:n]))
    with pytest.raises(InvalidInputError, match="unique"):
        store.open(common)


@pytest.mark.parametrize("name", ["nope", "", "/", "..", ".", "../x"])
def test_unknown_runs_are_one_line(store, name):
    make(store)
    with pytest.raises(InvalidInputError, match="run="):
        store.open(name)


def test_remove_stays_inside_the_store(store, tmp_path):
    outside = make(RunStore(tmp_path / "other"))
    make(store)
    for name in (str(outside.path), "..", "../other/" + outside.id):
        with pytest.raises(InvalidInputError):
            store.remove(name)
    assert outside.path.exists()


def test_table_names_can_not_leave_the_folder(store):
    run = make(store)
    for name in ("../x", "a/b", "", "A"):
        with pytest.raises(InvalidInputError):
            run.table(name)


def test_a_newer_manifest_stays_readable(store):
    run = make(store)
    path = run.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "from_the_future": {"x": 1}}))
    assert store.open(run.id).manifest.status == "complete"


def test_root_that_is_a_file(tmp_path):
    Path(tmp_path / "f").write_text("")
    with pytest.raises(InvalidInputError, match="runs-dir"):
        RunStore(tmp_path / "f").create(target=TARGET)


def test_manifest_fields_follow_the_contract():
    fields = set(Manifest.model_fields)
    assert fields >= {
        "schema_version", "kind", "id", "created", "name", "tags", "tool_version", "git", "command", "target",
        "workload", "workload_sha256", "seed", "nonce", "machine", "clock",
        "status", "error", "drops", "tables", "sweep",
    }  # fmt: skip


def test_a_requests_table_of_another_kind_is_refused():
    with pytest.raises(RunCorruptError, match=r"requests: no column phase$"):
        measured(pa.table({"request_id": ["x"]}))


def test_a_chunks_table_of_another_kind_is_refused():
    requests = pa.table({"request_id": ["x"], "phase": ["measure"]})
    with pytest.raises(RunCorruptError, match=r"chunks: no column n_tokens, recv_ns$"):
        read_events(pa.table({"request_id": ["x"]}), requests, 0)


@pytest.mark.parametrize("damaged", ['{"latency": 5, "counts": {}}', '{"latency": null, "counts": null}'])
def test_metrics_of_another_shape_are_refused(store, damaged):
    run = make(store)
    (run.path / "metrics.json").write_text(damaged)
    with pytest.raises(RunCorruptError, match="not a JSON object"):
        run.metrics("counts")


def test_a_part_that_a_reader_needs_must_be_there(store):
    run = make(store)
    assert run.metrics("latency") == METRICS
    with pytest.raises(RunCorruptError, match="counts: not a JSON object"):
        run.metrics("counts")
