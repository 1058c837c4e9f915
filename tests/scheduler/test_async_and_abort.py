"""Plans made before results are known, and requests that leave at any moment."""

from __future__ import annotations

import pytest

from engine.errors import EngineError
from engine.messages import FinishReason
from engine.plan import StepResult
from tests.scheduler.harness import Harness

BOTH = pytest.mark.parametrize("asynchronous", [False, True])


def test_the_next_step_is_planned_before_the_token_is_known():
    harness = Harness(async_scheduling=True)
    harness.add("a", 5, max_tokens=4)
    scheduler = harness.scheduler
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"a": 5}, {"a": 1})
    assert second.num_computed_tokens == {"a": 5}
    assert (list(first.samples), list(second.samples)) == (["a"], ["a"])
    assert scheduler.state.requests["a"].num_output_placeholders == 2
    for plan in (first, second):
        scheduler.update(plan, harness.executor.execute(plan))
    harness.core.check_invariants()
    assert scheduler.state.requests["a"].num_output_tokens == 2


def test_no_step_is_planned_beyond_a_certain_end():
    harness = Harness(async_scheduling=True)
    harness.add("a", 5, max_tokens=2)
    scheduler = harness.scheduler
    plans = [scheduler.schedule() for _ in range(3)]
    assert [plan.num_scheduled_tokens for plan in plans] == [{"a": 5}, {"a": 1}, {}]
    for plan in plans[:2]:
        scheduler.update(plan, harness.executor.execute(plan))
    harness.drain()
    harness.check_idle()


def test_a_token_computed_past_eos_is_dropped():
    harness = Harness(async_scheduling=True)
    harness.add("a", 3, max_tokens=200, ignore_eos=False)
    harness.drain()
    harness.check_all_finished()
    computed = sum(plan.total_num_scheduled_tokens for plan in harness.executor.plans)
    assert computed == 3 + len(harness.tokens("a"))  # one step more than was needed


@pytest.mark.parametrize("seed", range(6))
def test_preempted_in_every_step_at_depth_two(seed):
    """Pitfall 17: no token lost, none doubled, none stale."""
    harness = Harness(num_blocks=32, async_scheduling=True)
    for name in ("a", "b", "c"):
        harness.add(name, 3 + seed, max_tokens=12, seed=seed, ignore_eos=False)
    for _ in range(400):
        if not harness.core.has_work():
            break
        harness.step()
        harness.scheduler.preempt_all()
    harness.drain()
    harness.check_all_finished()
    assert harness.core.stats().num_preemptions > 10
    assert len(harness.events("first_token")) == 3


def test_a_preempted_request_keeps_its_token_in_flight_and_waits_for_it():
    harness = Harness(async_scheduling=True)
    harness.add("a", 5, max_tokens=4)
    scheduler = harness.scheduler
    plan = scheduler.schedule()
    scheduler.preempt_all()
    waiting = scheduler.schedule()
    assert waiting.num_scheduled_tokens == {}
    assert list(waiting.preempted_request_ids) == ["a"]
    (output,) = scheduler.update(plan, harness.executor.execute(plan))
    assert len(output.new_token_ids) == 1
    harness.executor.execute(waiting)
    resumed = scheduler.schedule()
    assert len(resumed.new_requests[0].token_ids) == 6
    assert resumed.new_requests[0].num_computed_tokens == 0  # what the step wrote went with the blocks


def test_a_chunk_in_flight_says_nothing_about_the_blocks_of_a_resumed_request():
    """Preempted and resumed while its first chunk is in flight: that chunk's blocks are no longer its own,
    and the new ones are not written yet.
    """
    harness = Harness(async_scheduling=True, max_num_batched_tokens=16)
    harness.add("a", 20, max_tokens=2)
    scheduler = harness.scheduler
    first = scheduler.schedule()
    scheduler.preempt_all()
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 16}
    scheduler.update(first, harness.executor.execute(first))
    harness.add("b", harness.requests["a"].prompt_token_ids)
    other = scheduler.state.requests["b"]
    assert scheduler.kv.get_computed_blocks(other).num_tokens == 0
    scheduler.update(second, harness.executor.execute(second))
    assert scheduler.kv.get_computed_blocks(other).num_tokens == 16
    harness.drain()
    harness.check_all_finished()


def test_the_last_token_may_arrive_while_preempted():
    harness = Harness(async_scheduling=True)
    harness.add("a", 5, max_tokens=1)
    scheduler = harness.scheduler
    plan = scheduler.schedule()
    scheduler.preempt_all()
    (output,) = scheduler.update(plan, harness.executor.execute(plan))
    assert output.finish_reason is FinishReason.LENGTH
    assert not harness.waiting()
    harness.core.check_invariants()
    harness.drain()
    harness.check_idle()


def abort_while_waiting(harness: Harness) -> None:
    pass


def abort_in_prefill(harness: Harness) -> None:
    harness.step()


def abort_in_decode(harness: Harness) -> None:
    for _ in range(8):
        harness.step()


def abort_while_preempted(harness: Harness) -> None:
    harness.step()
    harness.scheduler.preempt_all()


@BOTH
@pytest.mark.parametrize(
    "reach", [abort_while_waiting, abort_in_prefill, abort_in_decode, abort_while_preempted]
)
def test_abort_in_every_state(reach, asynchronous):
    """Pitfall 39, and KV usage is back to idle at once."""
    harness = Harness(max_num_batched_tokens=16, async_scheduling=asynchronous)
    harness.add("a", 40, max_tokens=20)
    reach(harness)
    harness.core.abort_requests(["a", "unknown"])
    harness.core.abort_requests(["a"])
    assert harness.core.stats().kv_blocks_used == 0
    harness.drain()
    last = harness.outputs["a"][-1]
    assert last.finish_reason is FinishReason.ABORT
    assert last.timings is not None
    assert [output.finish_reason for output in harness.outputs["a"]].count(FinishReason.ABORT) == 1
    harness.check_idle()


@BOTH
def test_abort_after_the_end_is_ignored(asynchronous):
    harness = Harness(async_scheduling=asynchronous)
    harness.add("a", 3)
    harness.drain()
    harness.core.abort_requests(["a"])
    assert not harness.core.has_work()
    harness.check_all_finished()


@pytest.mark.parametrize("num_in_flight", [1, 2])
def test_an_id_can_be_used_again_at_once(num_in_flight):
    """Pitfall 40: what is still in flight for the old request does not reach the new one."""
    harness = Harness(async_scheduling=True)
    harness.add("a", 5, max_tokens=9, seed=1)
    scheduler = harness.scheduler
    plans = [scheduler.schedule() for _ in range(num_in_flight)]
    scheduler.abort(["a"])
    harness.add("a", 7, max_tokens=3, seed=2)
    for plan in plans:
        assert scheduler.update(plan, harness.executor.execute(plan)) == []
        harness.core.check_invariants()
    harness.drain()
    harness.check_all_finished()


def test_blocks_of_an_aborted_request_serve_others_while_its_step_is_in_flight():
    harness = Harness(num_blocks=4, async_scheduling=True)
    harness.add("a", 15, max_tokens=1)
    scheduler = harness.scheduler
    first = scheduler.schedule()
    scheduler.abort(["a"])
    harness.add("b", 15, max_tokens=1)
    second = scheduler.schedule()
    assert second.num_scheduled_tokens == {"b": 15}
    assert scheduler.update(first, harness.executor.execute(first)) == []
    harness.outputs["b"] = scheduler.update(second, harness.executor.execute(second))
    harness.check_finished("b")
    harness.drain()
    harness.check_idle()


def test_a_result_out_of_order_ends_the_engine():
    harness = Harness(async_scheduling=True)
    harness.add("a", 5)
    first, second = harness.scheduler.schedule(), harness.scheduler.schedule()
    with pytest.raises(EngineError, match="out of order"):
        harness.scheduler.update(second, StepResult(second.step_id, {"a": 1}))
    with pytest.raises(EngineError, match="0 tokens sampled, 1 planned"):
        harness.scheduler.update(first, StepResult(first.step_id, {}))
    with pytest.raises(EngineError, match="no token was sampled"):
        harness.scheduler.update(first, StepResult(first.step_id, {"b": 1}))


@BOTH
def test_soak(asynchronous):
    """2,000 requests, a tenth aborted at some moment: nothing is left."""
    harness = Harness(
        num_blocks=24, max_num_seqs=12, max_num_batched_tokens=24, async_scheduling=asynchronous
    )
    aborted = set()
    for index in range(2000):
        harness.add(f"r{index}", [index % 5] * (1 + index % 17), 1 + index % 7, seed=index)
        if index % 10 == 7:
            victim = f"r{index - index % 4}"
            if victim in harness.scheduler.state.requests:
                aborted.add(victim)
                harness.core.abort_requests([victim])
        if index % 2:
            harness.step()
    harness.drain()
    harness.check_idle()
    assert len(aborted) > 100
    for request_id in harness.requests.keys() - aborted:
        harness.check_finished(request_id)
    assert not harness.scheduler.state.requests
