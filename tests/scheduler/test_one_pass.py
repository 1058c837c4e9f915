"""What a step hands out, in exact numbers."""

from __future__ import annotations

import pytest

from tests.scheduler.harness import Harness


def stop_of_last_step(harness: Harness) -> str:
    return harness.steps()[-1]["admission_stop"]


def test_a_prompt_is_computed_in_chunks_of_the_budget_then_decoded():
    harness = Harness(max_num_batched_tokens=16)
    harness.add("a", 40, max_tokens=3)
    assert [harness.plan() for _ in range(5)] == [{"a": 16}, {"a": 16}, {"a": 8}, {"a": 1}, {"a": 1}]
    assert [list(plan.samples) for plan in harness.executor.plans] == [[], [], ["a"], ["a"], ["a"]]
    harness.drain()
    harness.check_all_finished()


def test_running_requests_come_before_waiting_ones():
    harness = Harness(max_num_batched_tokens=16)
    harness.add("a", 10)
    harness.add("b", 20)
    assert harness.plan() == {"a": 10, "b": 6}
    harness.add("c", 5)
    assert harness.plan() == {"a": 1, "b": 14, "c": 1}
    assert harness.plan() == {"a": 1, "b": 1, "c": 4}


def test_a_prefill_chunk_never_takes_the_token_of_a_decoding_request_behind_it():
    """A resumed or high-priority prompt can stand before decoding requests; the budget still reaches them."""
    harness = Harness(max_num_batched_tokens=16, scheduling_policy="priority")
    for name in ("x", "y", "z"):
        harness.add(name, 2, max_tokens=20, priority=5)
    harness.plan()
    harness.add("long", 40, priority=0)
    assert harness.plan() == {"x": 1, "y": 1, "z": 1, "long": 13}
    assert harness.plan() == {"long": 13, "x": 1, "y": 1, "z": 1}


def test_several_requests_share_a_step_and_keep_their_order():
    harness = Harness(max_num_batched_tokens=64)
    for name, length in (("a", 5), ("b", 1), ("c", 30)):
        harness.add(name, length)
    assert list(harness.plan().items()) == [("a", 5), ("b", 1), ("c", 30)]


@pytest.mark.parametrize(
    ("config", "prompts", "expected", "stop"),
    [
        ({}, [5, 5], {"a": 5, "b": 5}, "queue_empty"),
        ({"max_num_batched_tokens": 16}, [10, 10, 10], {"a": 10, "b": 6}, "token_budget"),
        ({"max_num_seqs": 1}, [5, 5], {"a": 5}, "max_num_seqs"),
        ({"num_blocks": 4}, [9, 9], {"a": 9}, "kv_blocks"),
        ({"long_prefill_token_threshold": 4}, [10, 10, 3], {"a": 4, "b": 4, "c": 3}, "queue_empty"),
        (
            {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 1},
            [10, 10, 3],
            {"a": 4},
            "long_prefill_cap",
        ),
        (
            {"long_prefill_token_threshold": 4, "max_num_partial_prefills": 1},
            [10, 3, 10],
            {"a": 4, "b": 3},
            "long_prefill_cap",
        ),
        (
            {"enable_chunked_prefill": False, "max_model_len": 16, "max_num_batched_tokens": 16},
            [10, 10],
            {"a": 10},
            "token_budget",
        ),
        ({"num_blocks": 10, "watermark": 0.5}, [9, 9], {"a": 9}, "kv_blocks"),
        ({"num_blocks": 10, "watermark": 0.3}, [9, 9], {"a": 9, "b": 9}, "queue_empty"),
    ],
)
def test_why_admission_stopped(config, prompts, expected, stop):
    harness = Harness(**config)
    for name, length in zip("abc", prompts, strict=False):
        harness.add(name, length)
    assert harness.plan() == expected
    assert stop_of_last_step(harness) == stop
    harness.drain()
    harness.check_all_finished()


def test_chunking_off_ignores_the_long_prefill_threshold():
    harness = Harness(
        enable_chunked_prefill=False,
        max_model_len=32,
        max_num_batched_tokens=32,
        long_prefill_token_threshold=4,
    )
    harness.add("a", 20)
    assert harness.plan() == {"a": 20}


def test_the_first_in_the_queue_is_not_passed():
    """Pitfall 13, settled: head-of-line blocking is intended, so that a big request cannot starve."""
    harness = Harness(num_blocks=8)
    harness.add("a", 15, max_tokens=8)
    harness.plan()
    harness.add("big", 24)
    harness.add("tiny", 1)
    assert harness.plan() == {"a": 1}
    assert stop_of_last_step(harness) == "kv_blocks"
    harness.drain()
    harness.check_all_finished()


@pytest.mark.parametrize("threshold", [0, 8])
def test_reservation_looks_at_the_whole_prompt_not_the_first_chunk(threshold):
    """Pitfall 11: without it two prompts collide half-way and one loses its work. The rest of a running
    prefill is set aside, too: with chunks of 8 tokens the second prompt would fit beside the first's chunk.
    """
    preemptions = {}
    for reserve in (True, False):
        harness = Harness(
            num_blocks=14,
            max_num_batched_tokens=16,
            long_prefill_token_threshold=threshold,
            scheduler_reserve_full_isl=reserve,
        )
        for name in ("a", "b"):
            harness.add(name, 40, max_tokens=2)
        harness.drain()
        harness.check_all_finished()
        preemptions[reserve] = harness.core.stats().num_preemptions
    assert preemptions == {True: 0, False: 1}


def test_priority_admits_the_lowest_value_first_then_by_arrival():
    harness = Harness(max_num_seqs=1, scheduling_policy="priority")
    harness.add("late", 3, max_tokens=1, priority=1, arrival_ns=9)
    harness.add("early", 3, max_tokens=1, priority=1, arrival_ns=5)
    harness.add("urgent", 3, max_tokens=1, priority=-1, arrival_ns=20)
    order = []
    while harness.core.has_work():
        order += [output.request_id for output in harness.step() if output.finish_reason]
    assert order == ["urgent", "early", "late"]


def test_step_composition():
    harness = Harness(max_num_batched_tokens=16, num_blocks=20)
    harness.add("a", 5, max_tokens=8)
    harness.step()
    harness.add("b", 20)
    harness.step()
    step = harness.steps()[-1]
    assert {name: step[name] for name in (
        "num_prefill_reqs", "num_decode_reqs", "prefill_tokens", "decode_tokens",
        "prefill_sum_sk", "prefill_sum_sq2", "prefill_sum_sqsk", "decode_sum_sk",
        "num_running", "num_waiting", "kv_used", "kv_free", "kv_cached", "kv_evicted",
        "prefix_query_tokens", "prefix_hit_tokens", "num_preempted", "preempted_tokens",
    )} == {
        "num_prefill_reqs": 1, "num_decode_reqs": 1, "prefill_tokens": 15, "decode_tokens": 1,
        "prefill_sum_sk": 15, "prefill_sum_sq2": 225, "prefill_sum_sqsk": 225, "decode_sum_sk": 6,
        "num_running": 2, "num_waiting": 0, "kv_used": 6, "kv_free": 14, "kv_cached": 0, "kv_evicted": 0,
        "prefix_query_tokens": 20, "prefix_hit_tokens": 0, "num_preempted": 0, "preempted_tokens": 0,
    }  # fmt: skip
    harness.step()
    step = harness.steps()[-1]
    assert (step["prefill_tokens"], step["prefill_sum_sk"], step["prefill_sum_sqsk"]) == (5, 20, 100)


def test_a_prompt_of_one_token_is_a_prefill():
    harness = Harness()
    harness.add("a", 1)
    harness.step()
    harness.step()
    kinds = [(step["num_prefill_reqs"], step["num_decode_reqs"]) for step in harness.steps()]
    assert kinds == [(1, 0), (0, 1)]
