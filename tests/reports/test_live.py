"""What is going on in a store: a run and a sweep that are written, torn streams, processes that died."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.cells import CellOutcome
from experiments.models import Cell
from experiments.spec import Load
from reports.dashboard import live, store
from tests.experiments.world import World, run, spec_of
from tests.reports.live_factory import GrowingRun
from tests.reports.page_opener import open_page, said
from tests.reports.store_factory import write_run
from tests.reports.study_factory import write_capacity
from workbench.errors import RunCorruptError
from workbench.runstore import RunStore


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture
def growing(root: Path) -> Iterator[GrowingRun]:
    run = GrowingRun(root)
    yield run
    run.close()


def look(run: GrowingRun) -> live.RunProgress:
    manifest = RunStore(run.folder.parent).open(run.folder.name).manifest
    return live.run_progress(run.folder, manifest, run.now_ns)


def test_progress_and_time_left_of_a_run(growing: GrowingRun) -> None:
    assert look(growing).phase == "starting"
    growing.add(finished=["x-w0"])
    assert (look(growing).phase, look(growing).finished) == ("warming up", 0)
    for index in range(4):
        growing.add(finished=[f"x-m{index}"])
    found = look(growing)
    assert (found.phase, found.finished, found.planned) == ("sending", 4, 8)
    assert (found.running, found.waiting) == (2, 1)
    assert found.recent_tok_s == pytest.approx(40.0)  # 4 tokens every 100 ms
    # The first measured request came at 0.1 s, four ended by 0.5 s: 0.1 s each, four are left.
    assert found.eta_s == pytest.approx(0.4)
    assert found.steps is not None
    assert found.steps["start_s"].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_a_batch_that_is_not_whole_yet_comes_with_the_next_look(growing: GrowingRun) -> None:
    growing.add(finished=["x-m0"])
    growing.add(finished=["x-m1"])
    growing.cut()
    found = look(growing)
    assert found.finished == 1
    assert found.steps is not None
    assert len(found.steps) == 1


def test_streams_that_are_none_or_lead_elsewhere_are_not_read(root: Path, growing: GrowingRun) -> None:
    steps = growing.folder / "trace" / "steps.arrows"
    steps.write_bytes(b"not arrow at all")
    assert look(growing).steps is None
    steps.unlink()
    steps.symlink_to("/etc/hostname")
    assert "leads out of the run's folder" in look(growing).note


def test_the_page_follows_what_runs(root: Path, growing: GrowingRun) -> None:
    growing.add(finished=["x-m0", "x-m1"])
    text = said(open_page("live"))
    assert "a growing run" in text
    assert "sending" in text
    write_run(root, "done", count=4)
    growing.add(finished=["x-m2"])
    page = open_page("live")
    assert len(page.get("plotly_chart")) == 1
    assert "Nothing is running" not in said(page)


def test_a_run_whose_process_is_gone_does_not_run(root: Path) -> None:
    GrowingRun(root, alive=False).close()
    text = said(open_page("live"))
    assert "Nothing is running in this store" in text
    assert not store.still_running(store.runs()[0])


def test_a_run_that_is_written_is_not_deleted(root: Path, growing: GrowingRun) -> None:
    with pytest.raises(RunCorruptError, match="being written"):
        store.remove_run("growing")
    assert growing.folder.is_dir()


def test_only_runs_of_the_store_are_deleted(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "store"
    home.mkdir()
    write_run(home, "mine", count=4)
    write_run(home, "mine-too", count=4)
    write_run(tmp_path, "elsewhere", count=4)
    (home / "link").symlink_to(tmp_path / "elsewhere")
    (home / "sweep").mkdir()
    (home / "sweep" / "sweep.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_RUNS", str(home))
        for bad in ("../elsewhere", "link", "..", ".", "", "min", "sweep", str(tmp_path / "elsewhere")):
            with pytest.raises(RunCorruptError):
                store.remove_run(bad)
        store.remove_run("mine")
    assert sorted(p.name for p in home.iterdir()) == ["link", "mine-too", "sweep"]
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()


def test_a_sweep_is_followed_by_its_ledger(root: Path) -> None:
    spec = spec_of(values="64,2048", blocks=2, confirm=0, pilot=0)
    cells: list[Cell] = []

    class Watching(World):
        def __call__(self, cell: Cell, load: Load) -> CellOutcome:
            folder = next(root.glob("*/ledger.jsonl")).parent
            found = live.sweep_progress(folder, 0.0)
            assert found is not None
            assert found.done == len(cells)
            assert f"level {cell.level}" in found.current
            cells.append(cell)
            return super().__call__(cell, load)

    run(Watching(), root, spec)
    folder = next(root.glob("*/ledger.jsonl")).parent
    end = live.sweep_progress(folder, 0.0)
    assert end is not None
    assert (end.done, end.planned, end.eta_s) == (len(cells), len(cells), None)
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"t": "now", "event": "finished", "cell": {"foreign": 1}}\n{"t": "cut')
    again = live.sweep_progress(folder, 0.0)
    assert again is not None
    assert again.done == end.done


def test_a_sweep_without_a_readable_schedule_is_left_out(root: Path) -> None:
    (root / "odd").mkdir()
    (root / "odd" / "ledger.jsonl").write_text("{}\n")
    assert live.sweep_progress(root / "odd", 0.0) is None
    (root / "odd" / "schedule.json").write_text(json.dumps({"id": 5}))
    assert live.sweep_progress(root / "odd", 0.0) is None
    assert "Nothing is running" in said(open_page("live"))


def test_a_capacity_search_that_runs_is_shown(root: Path) -> None:
    write_capacity(root, status="running")
    text = said(open_page("live"))
    assert "Capacity search on chat" in text
    assert "Nothing is running" not in text
    os.utime(root / "capacity-demo" / "capacity.json", (1e9, 1e9))
    assert "Nothing is running" in said(open_page("live"))  # killed long ago


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (75, "1:15"), (3725, "1:02:05"), (-4, "0:00")])
def test_clock(seconds: float, text: str) -> None:
    assert live.clock(seconds) == text
