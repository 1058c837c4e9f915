"""The loop of schedule, execute, update, with threads and without."""

from __future__ import annotations

import threading

import pytest

from engine.clock import MonotonicClock, VirtualClock
from engine.config import EngineConfig
from engine.core.core import STEP_STAMPS, EngineCore
from engine.core.runner import ThreadRunner
from engine.errors import EngineDeadError
from engine.kv.invariants import InvariantError
from engine.messages import EngineCoreOutput
from engine.scheduler.step_stats import StepStats
from engine.trace.recorder import ListRecorder
from engine.trace.records import STEP_COLUMNS
from tests.scheduler.harness import make_request
from tests.scheduler.oracle import OracleExecutor, solo


def make_core(*, clock=None, executor_type=OracleExecutor, num_blocks=24, trace=None, **config) -> EngineCore:
    config = EngineConfig.create(
        block_size=4, max_num_seqs=8, max_num_batched_tokens=16, check_invariants=True, **config
    )
    executor = executor_type(num_blocks + 1, 4, 16, 8)
    return EngineCore.create(config, executor, clock or MonotonicClock(), trace or ListRecorder())


def drain(core: EngineCore) -> dict[str, list[EngineCoreOutput]]:
    outputs: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(10_000):
        if not core.has_work():
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("no end")


def test_step_record_has_the_columns_of_the_schema():
    names = tuple(name for name, _ in STEP_COLUMNS)
    assert (*STEP_STAMPS, *StepStats._fields, "gpu_forward_ns") == names


def test_a_step_tells_everything():
    core = make_core()
    core.add_request(make_request("a", 5, max_tokens=2))
    first, second = core.step(), core.step()
    assert (first.step_tokens, second.step_tokens) == (5, 1)
    assert [output.request_id for output in first.outputs] == ["a"]
    assert (first.stats.num_running, first.stats.kv_blocks_used, first.stats.kv_blocks_total) == (1, 2, 24)
    assert second.outputs[0].finish_reason == "length"
    assert (second.stats.num_running, second.stats.kv_blocks_used, second.stats.num_steps) == (0, 0, 2)


def test_after_the_last_request_one_step_tells_the_executor():
    core = make_core()
    core.add_request(make_request("a", 5, max_tokens=1))
    core.step()
    assert core.executor.rows
    assert core.has_work()
    assert core.step().outputs == []
    assert not core.executor.rows
    assert not core.has_work()
    assert core.step().outputs == []


@pytest.mark.parametrize("clock_type", [MonotonicClock, VirtualClock])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_outputs_do_not_depend_on_how_steps_are_run(clock_type, asynchronous):
    core = make_core(clock=clock_type(), async_scheduling=asynchronous, num_blocks=12)
    requests = [
        make_request(f"r{index}", 1 + index % 9, max_tokens=9, seed=index, ignore_eos=False)
        for index in range(30)
    ]
    for request in requests:
        core.add_request(request)
    outputs = drain(core)
    core.shutdown()
    for request in requests:
        tokens = [token for output in outputs[request.request_id] for token in output.new_token_ids]
        assert tokens == solo(request, core.max_request_tokens)[0]
    assert core.stats().num_preemptions > 0


def test_async_scheduling_runs_the_executor_on_its_own_thread():
    class Watching(OracleExecutor):
        threads: set[str] = set()  # noqa: RUF012

        def execute(self, plan):
            self.threads.add(threading.current_thread().name)
            return super().execute(plan)

    core = make_core(executor_type=Watching, async_scheduling=True)
    core.add_request(make_request("a", 5, max_tokens=3))
    drain(core)
    core.shutdown()
    assert Watching.threads == {"executor_0"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("executor")]


def test_the_next_step_is_planned_while_the_executor_works():
    """The executor blocks in step 0 until step 1 has been planned: without overlap this would time out."""
    planned = threading.Event()

    class Waiting(OracleExecutor):
        def execute(self, plan):
            if plan.step_id == 0 and not planned.wait(timeout=20):
                raise TimeoutError("step 1 was not planned while step 0 ran")
            return super().execute(plan)

    core = make_core(executor_type=Waiting, async_scheduling=True)
    schedule = core.scheduler.schedule

    def watched_schedule():
        plan = schedule()
        if plan.step_id == 1:
            planned.set()
        return plan

    core.scheduler.schedule = watched_schedule
    core.add_request(make_request("a", 5, max_tokens=3))
    drain(core)
    core.shutdown()


class Failing(OracleExecutor):
    def execute(self, plan):
        if plan.step_id == 2:
            raise RuntimeError("out of memory")
        return super().execute(plan)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_executor_failure_is_raised_once_then_the_core_is_dead(asynchronous):
    core = make_core(executor_type=Failing, async_scheduling=asynchronous)
    core.add_request(make_request("a", 5, max_tokens=9))
    with pytest.raises(RuntimeError, match="out of memory"):
        drain(core)
    for call in (
        core.step,
        lambda: core.add_request(make_request("b", 5)),
        lambda: core.abort_requests(["a"]),
    ):
        with pytest.raises(EngineDeadError):
            call()
    core.shutdown()
    core.shutdown()


def test_shutdown_closes_the_trace_even_if_the_executor_fails_to_stop():
    class Stubborn(OracleExecutor):
        def shutdown(self):
            raise RuntimeError("stuck")

    class Trace(ListRecorder):
        closed = False

        def close(self):
            self.closed = True

    trace = Trace()
    core = make_core(executor_type=Stubborn, trace=trace)
    with pytest.raises(RuntimeError, match="stuck"):
        core.shutdown()
    assert trace.closed


def test_shutdown_with_a_step_in_flight_leaves_no_thread():
    core = make_core(async_scheduling=True)
    core.add_request(make_request("a", 5, max_tokens=9))
    core.step()
    core.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("executor")]


def test_runner_keeps_order():
    executor = OracleExecutor(25, 4, 16, 8)
    core = make_core()
    core.add_request(make_request("a", 5, max_tokens=9))
    runner = ThreadRunner(executor)
    plans = [core.scheduler.schedule() for _ in range(3)]
    for plan in plans:
        runner.submit(plan)
    assert [runner.next_result()[1].step_id for _ in plans] == [0, 1, 2]
    runner.shutdown()


def test_invariants_are_always_checked_when_idle():
    core = make_core()
    core = EngineCore.create(
        core.config.model_copy(update={"check_invariants": False}),
        OracleExecutor(25, 4, 16, 8),
        VirtualClock(),
        ListRecorder(),
    )
    core.add_request(make_request("a", 5, max_tokens=3))
    core.step()
    core.scheduler.kv.pool.blocks[20].ref_cnt = 1
    core.step()
    with pytest.raises(InvariantError):
        drain(core)


def test_abort_outputs_come_with_the_next_step():
    core = make_core(clock=VirtualClock(7))
    core.add_request(make_request("a", 5, max_tokens=9))
    core.add_request(make_request("b", 5, max_tokens=1))
    core.abort_requests(["a"])
    outputs = core.step().outputs
    assert [(output.request_id, output.finish_reason) for output in outputs] == [
        ("a", "abort"),
        ("b", "length"),
    ]
    timings = outputs[0].timings
    assert (timings.queued_ns, timings.scheduled_ns, timings.first_token_ns) == (7, None, None)
