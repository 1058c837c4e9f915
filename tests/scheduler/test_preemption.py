"""Who gives way, what it loses, how it comes back."""

from __future__ import annotations

import pytest

from engine.scheduler.draft import StepDraft
from tests.scheduler.harness import Harness


def test_fcfs_preempts_the_last_and_resumes_it_first():
    harness = Harness(num_blocks=4)
    harness.add("a", 7, max_tokens=8)
    harness.add("b", 7, max_tokens=8)
    harness.step()
    harness.add("c", 3)
    assert harness.plan() == {"a": 1, "b": 1}  # both fill their second block
    assert harness.plan() == {"a": 1}  # the pool is full: b gives way to a
    assert list(harness.last_plan.preempted_request_ids) == ["b"]
    assert harness.steps()[-1]["admission_stop"] == "preempted"
    assert (harness.steps()[-1]["num_preempted"], harness.steps()[-1]["preempted_tokens"]) == (1, 8)
    assert harness.waiting() == {"b", "c"}
    harness.drain()
    harness.check_all_finished()
    resumed = [event["request_id"] for event in harness.events("resumed")]
    assert resumed[0] == "b"
    scheduled_first = [event["request_id"] for event in harness.events("scheduled")]
    assert scheduled_first.index("c") > 2  # c is behind the resumed b
    assert harness.events("preempted")[0]["tokens"] == 8


def test_priority_victim_that_crosses_a_block_edge_in_the_same_step():
    """Pitfall 1: A (p=1) stands before B (p=0) by admission, both need a block, only one is left."""
    harness = Harness(num_blocks=5, scheduling_policy="priority")
    harness.add("A", 7, max_tokens=6, priority=1)
    harness.step()
    harness.add("B", 7, max_tokens=6, priority=0)
    harness.step()
    assert harness.running() == ["B", "A"]
    harness.drain()
    harness.check_all_finished()
    assert {event["request_id"] for event in harness.events("preempted")} == {"A"}


def test_nobody_is_skipped_when_a_request_gives_way():
    """Pitfall 2: all that keep running are planned in the very step of the preemption."""
    harness = Harness(num_blocks=6, scheduling_policy="priority")
    for name, priority in (("x", 2), ("y", 1), ("z", 0)):
        harness.add(name, 7, max_tokens=9, priority=priority)
    harness.step()
    harness.step()
    plan = harness.plan()
    assert plan == {"z": 1, "y": 1}
    assert list(harness.last_plan.preempted_request_ids) == ["x"]
    harness.drain()
    harness.check_all_finished()


def test_the_whole_share_of_a_victim_is_taken_back():
    """A high-priority request takes the seat of one that was already planned in this step."""
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=16, scheduling_policy="priority")
    harness.add("low", 20, priority=9)
    harness.add("mid", 2, priority=5)
    harness.step()
    harness.add("high", 30, priority=0)
    assert harness.plan() == {"mid": 1, "high": 15}  # the budget that low had in this step went to high
    assert list(harness.last_plan.preempted_request_ids) == ["low"]
    assert "low" not in harness.last_plan.new_block_ids
    assert harness.steps()[-1]["preempted_tokens"] == 14
    harness.drain()
    harness.check_all_finished()


def test_high_priority_enters_at_max_num_seqs_only_over_strictly_lower_rank():
    harness = Harness(max_num_seqs=1, scheduling_policy="priority")
    harness.add("first", 5, max_tokens=3, priority=1)
    harness.step()
    harness.add("same", 5, priority=1, arrival_ns=-1)
    assert harness.plan() == {"first": 1}
    assert harness.steps()[-1]["admission_stop"] == "max_num_seqs"
    harness.add("better", 5, priority=0)
    assert harness.plan() == {"better": 5}
    harness.drain()
    harness.check_all_finished()
    assert harness.core.stats().num_preemptions == 1


def test_high_priority_takes_blocks_only_if_that_lets_it_in():
    harness = Harness(num_blocks=9, scheduling_policy="priority")
    harness.add("best", 15, max_tokens=8, priority=0)
    harness.add("low", 7, max_tokens=8, priority=9)
    harness.step()
    harness.add("big", 24, max_tokens=2, priority=5)  # low's 2 blocks and the 3 free ones are too few for 6
    harness.step()
    assert harness.running() == ["best", "low"]
    harness.core.abort_requests(["big"])
    harness.add("fits", 14, max_tokens=2, priority=5)  # needs 4: 1 is free, low has 3
    assert "fits" in harness.plan()
    assert harness.running() == ["best", "fits"]
    harness.core.abort_requests(["best"])
    harness.drain()
    harness.check_finished("low")
    harness.check_finished("fits")
    harness.check_idle()


def test_fcfs_never_preempts_for_a_waiting_request():
    harness = Harness(max_num_seqs=1)
    harness.add("a", 5, priority=9)
    harness.step()
    harness.add("b", 5, priority=0)
    harness.drain()
    assert harness.core.stats().num_preemptions == 0


def test_a_preempted_request_is_not_overtaken_by_its_equals():
    """Pitfall 16: an older waiting request of equal priority stays behind; and they don't take turns."""
    harness = Harness(num_blocks=4, scheduling_policy="priority")
    harness.add("a", 7, max_tokens=6, arrival_ns=10)
    harness.add("b", 7, max_tokens=6, arrival_ns=11)
    harness.step()
    harness.step()
    harness.add("older", 7, max_tokens=6, arrival_ns=1)
    assert harness.plan() == {"a": 1}
    assert harness.waiting() == {"b", "older"}
    harness.drain()
    harness.check_all_finished()
    ends = [event["request_id"] for event in harness.events("finished")]
    assert ends == ["a", "b", "older"]


def test_resume_with_a_prefix_hit_computes_exactly_what_is_missing():
    """Pitfalls 7 and 18: prompt of 3 tokens, 20 generated, preempted, resumed from its own cached blocks."""
    harness = Harness(num_blocks=32)
    harness.add("a", 3, max_tokens=30)
    for _ in range(21):
        harness.step()
    request = harness.scheduler.state.requests["a"]
    assert (request.num_output_tokens, request.num_computed_tokens) == (21, 23)
    harness.scheduler.preempt_all()
    assert harness.plan() == {"a": 4}  # 5 full blocks are found, 24 tokens are known
    (new,) = harness.last_plan.new_requests
    assert (new.num_computed_tokens, len(new.token_ids), new.num_prompt_tokens) == (20, 24, 3)
    assert harness.events("resumed")[0]["tokens"] == 20
    harness.drain()
    harness.check_all_finished()
    assert len(harness.events("first_token")) == 1
    stats = harness.core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (3, 0)
    assert (stats.resumed_prefix_cache_queries, stats.resumed_prefix_cache_hits) == (24, 20)


def test_cached_tokens_and_queue_time_are_those_of_the_first_scheduling():
    harness = Harness()
    harness.add("a", 9, max_tokens=10)
    harness.step()
    scheduled_ns = harness.scheduler.state.requests["a"].scheduled_ns
    harness.scheduler.preempt_all()
    harness.drain()
    last = harness.outputs["a"][-1]
    assert last.num_cached_tokens == 0
    assert last.timings.scheduled_ns == scheduled_ns
    assert last.timings.num_preemptions == 1
    assert last.timings.first_token_ns < last.timings.last_token_ns


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_a_pool_that_is_far_too_small_still_serves_everyone(policy, asynchronous, caching):
    """No livelock, no ping-pong: preemptions stay in proportion."""
    harness = Harness(
        num_blocks=6,
        max_num_seqs=6,
        max_num_batched_tokens=8,
        scheduling_policy=policy,
        async_scheduling=asynchronous,
        enable_prefix_caching=caching,
    )
    for index in range(30):
        harness.add(f"r{index}", 1 + index % 11, max_tokens=1 + index % 13, priority=index % 3)
    harness.drain()
    harness.check_all_finished()
    assert 0 < harness.core.stats().num_preemptions < 60


def test_draft_undo_returns_the_tokens():
    harness = Harness()
    harness.add("a", 5)
    request = harness.scheduler.state.requests["a"]
    draft = StepDraft(16)
    draft.add(request, 5, [1, 2], enters=True)
    assert (draft.budget, list(draft.shares)) == (11, ["a"])
    draft.undo(request)
    draft.undo(request)
    assert (draft.budget, draft.shares) == (16, {})
