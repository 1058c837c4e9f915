"""Profiled windows: bounded, exported off the step thread, and nothing without being asked."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.errors import InvalidInputError
from engine.executor import profiled
from engine.executor.profiled import ProfiledExecutor
from engine.executor.sim import SimExecutor
from engine.plan import StepPlan
from engine.trace.recorder import NullRecorder
from tests.scheduler.harness import make_request


class TorchLike(SimExecutor):
    """Simulated steps that also do something that a profiler can see."""

    def execute(self, plan):
        torch.ones(4).mul(2)
        return super().execute(plan)


def executor(folder):
    return ProfiledExecutor(TorchLike(64, VirtualClock()), folder)


def steps(target, numbers):
    for number in numbers:
        target.execute(StepPlan(number, [], {}, {"a": 1}, {"a": 0}, [], [], []))


def window(folder, number=0):
    meta = json.loads((folder / f"window-{number}.meta.json").read_text())
    path = folder / f"window-{number}.json"
    return meta, json.loads(path.read_text()) if path.exists() else None


def annotations(trace):
    return [
        e["name"]
        for e in trace["traceEvents"]
        if e.get("cat") == "user_annotation" and e["name"].startswith("step#")
    ]


def test_a_window_of_steps(tmp_path):
    target = executor(tmp_path)
    steps(target, [0, 1])
    target.start_profile(3, 60.0)
    target.execute(StepPlan(2, [], {}, {}, {}, [], [], []))  # computes nothing: no step
    steps(target, [3, 4, 5, 6])
    target.shutdown()
    meta, trace = window(tmp_path)
    assert meta["step_ids"] == [3, 4, 5]
    assert meta["kept"]
    assert abs(meta["wall_ns"] / 1e9 - 1.8e9) < 1e9
    assert annotations(trace) == ["step#3", "step#4", "step#5"]
    assert sum(e.get("name") == "aten::mul" for e in trace["traceEvents"]) == 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_stopping_early_and_a_second_window(tmp_path):
    target = executor(tmp_path)
    assert not target.stop_profile()
    target.start_profile(100, 60.0)
    steps(target, [0])
    assert target.stop_profile()
    assert not target.stop_profile()
    target.start_profile(1, 60.0)
    steps(target, [1, 2])
    target.shutdown()
    assert window(tmp_path, 0)[0]["step_ids"] == [0]
    assert window(tmp_path, 1)[0]["step_ids"] == [1]


def test_the_time_bound_trips(tmp_path):
    target = executor(tmp_path)
    target.start_profile(1000, 1e-6)
    steps(target, [0, 1, 2])
    target.shutdown()
    assert window(tmp_path)[0]["step_ids"] == [0]


def test_the_size_bound_trips_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(profiled, "MAX_BYTES", 100)
    target = executor(tmp_path)
    target.start_profile(1, 60.0)
    steps(target, [0])
    target.shutdown()
    meta, trace = window(tmp_path)
    assert (meta["kept"], trace) == (False, None)
    assert meta["bytes"] > 100


def test_export_does_not_hold_up_the_steps(tmp_path, monkeypatch):
    held = threading.Event()
    real = ProfiledExecutor._export

    def slow(self, *arguments):
        held.wait(30)
        real(self, *arguments)

    monkeypatch.setattr(ProfiledExecutor, "_export", slow)
    target = executor(tmp_path)
    target.start_profile(1, 60.0)
    steps(target, range(20))
    assert not list(tmp_path.iterdir())
    held.set()
    target.shutdown()
    assert window(tmp_path)[0]["step_ids"] == [0]


@pytest.mark.parametrize(
    ("num_steps", "seconds", "field"),
    [(0, 1.0, "num_steps"), (10**6, 1.0, "num_steps"), (5, 0.0, "max_seconds"), (5, 1e9, "max_seconds")],
)
def test_bounds_are_checked(tmp_path, num_steps, seconds, field):
    with pytest.raises(InvalidInputError, match=f"^{field}="):
        executor(tmp_path).start_profile(num_steps, seconds)


def test_no_folder_and_a_window_that_is_open(tmp_path):
    with pytest.raises(InvalidInputError, match=r"^trace_dir="):
        executor(None).start_profile(1, 1.0)
    target = executor(tmp_path)
    target.start_profile(1, 1.0)
    with pytest.raises(InvalidInputError, match="one window at a time"):
        target.start_profile(1, 1.0)
    target.shutdown()


def test_a_folder_that_can_not_be_made_ends_the_profile_not_the_engine(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    target = executor(tmp_path / "file" / "profile")
    target.start_profile(1, 1.0)
    steps(target, [0, 1])
    target.shutdown()
    assert "could not be written" in caplog.text


@pytest.mark.parametrize("asynchronous", [False, True])
def test_through_the_core(tmp_path, asynchronous):
    from engine.clock import MonotonicClock

    config = EngineConfig.create(block_size=4, async_scheduling=asynchronous)
    core = EngineCore.create(config, executor(tmp_path), MonotonicClock(), NullRecorder())
    core.add_request(make_request("a", 5, max_tokens=9))
    core.step()
    core.start_profile(3, 60.0)
    while core.has_work():
        core.step()
    assert not core.stop_profile()
    core.shutdown()
    meta, trace = window(tmp_path)
    assert len(meta["step_ids"]) == 3
    assert annotations(trace) == [f"step#{i}" for i in meta["step_ids"]]


def test_a_core_without_a_trace_refuses():
    core = EngineCore.create(
        EngineConfig.create(), SimExecutor(64, VirtualClock()), VirtualClock(), NullRecorder()
    )
    with pytest.raises(InvalidInputError, match=r"^trace_dir="):
        core.start_profile(1, 1.0)
    assert not core.stop_profile()
