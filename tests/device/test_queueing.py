"""Steps are queued one ahead: the runner begins the next before it finishes the last, also when watched."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from engine.core.runner import ThreadRunner
from engine.executor.base import PipelinedExecutor
from engine.executor.profiled import ProfiledExecutor
from engine.plan import StepPlan, StepResult
from tests.executor.plans import new, plan

FIRST = plan(0, {"a": (0, 1)}, ["a"], new_requests=[new("a", [1], [1])])
SECOND = plan(1, {"a": (1, 1)}, ["a"])


@dataclass
class Recording:
    """An executor that can queue."""

    num_kv_blocks: int = 2
    calls: list[str] = field(default_factory=list)

    def begin(self, step: StepPlan) -> StepPlan:
        self.calls.append(f"begin {step.step_id}")
        return step

    def finish(self, step: StepPlan) -> StepResult:
        self.calls.append(f"finish {step.step_id}")
        return StepResult(step.step_id, {})

    def ready(self, step: StepPlan) -> bool:
        return True

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.begin(step))

    def reset(self) -> None: ...

    def shutdown(self) -> None: ...


class Plain:
    """One that can't."""

    num_kv_blocks = 2

    def execute(self, step: StepPlan) -> StepResult:
        return StepResult(step.step_id, {"a": 5})

    def reset(self) -> None: ...

    def shutdown(self) -> None: ...


def test_the_next_step_is_begun_before_the_last_is_finished() -> None:
    executor = Recording()
    runner = ThreadRunner(executor)
    runner.submit(FIRST)
    runner.submit(SECOND)
    assert [runner.next_result()[1].step_id for _ in range(2)] == [0, 1]
    runner.shutdown()
    assert executor.calls == ["begin 0", "begin 1", "finish 0", "finish 1"]


def test_an_executor_that_cannot_queue_executes() -> None:
    runner = ThreadRunner(Plain())
    runner.submit(FIRST)
    assert runner.next_result() == (FIRST, StepResult(0, {"a": 5}))
    runner.shutdown()


def test_a_result_that_is_there_does_not_wait_for_the_next_step(tmp_path: Path) -> None:
    """A watched executor that can't queue: its result is out while the next step still runs."""
    may_end = threading.Event()

    class Slow(Plain):
        def execute(self, step: StepPlan) -> StepResult:
            if step.step_id == 1:
                assert may_end.wait(30)
            return super().execute(step)

    runner = ThreadRunner(ProfiledExecutor(Slow(), tmp_path))
    runner.submit(FIRST)
    runner.submit(SECOND)
    assert runner.next_result()[1].step_id == 0
    may_end.set()
    assert runner.next_result()[1].step_id == 1
    runner.shutdown()


def test_watching_changes_nothing_about_it(tmp_path: Path) -> None:
    executor = Recording()
    watched = ProfiledExecutor(executor, tmp_path)
    assert isinstance(watched, PipelinedExecutor)
    watched.start_profile(num_steps=1, max_seconds=60.0)
    begun = watched.begin(FIRST)
    following = watched.begin(SECOND)  # the window is over
    assert [watched.finish(step).step_id for step in (begun, following)] == [0, 1]
    watched.shutdown()
    assert executor.calls == ["begin 0", "begin 1", "finish 0", "finish 1"]
    assert '"step_ids": [0]' in (tmp_path / "window-0.meta.json").read_text()
    plain = ProfiledExecutor(Plain(), tmp_path)
    assert plain.finish(plain.begin(FIRST)) == StepResult(0, {"a": 5})
