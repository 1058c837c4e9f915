"""Prefix cache through the scheduler: when something is found, and that what is found is right (the
oracle looks).
"""

from __future__ import annotations

import pytest

from tests.scheduler.harness import Harness

BLOCK = 4


@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK, 2 * BLOCK + 1])
def test_the_same_prompt_twice(length):
    """Pitfall 6."""
    harness = Harness()
    for name in ("one", "two"):
        harness.add(name, list(range(length)), max_tokens=3)
        harness.drain()
    harness.check_all_finished()
    assert harness.tokens("one") == harness.tokens("two")
    assert harness.outputs["two"][-1].num_cached_tokens == (length - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("when", ["abort", "preempt"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_was_planned_but_not_computed_is_not_found(when, asynchronous):
    """Pitfall 3: registered blocks without KV would be served to the next request with this prompt."""
    harness = Harness(async_scheduling=asynchronous)
    prompt = list(range(2 * BLOCK + 1))
    harness.add("a", prompt)
    if asynchronous:
        harness.scheduler.schedule()  # planned; the executor never gets to see it
    if when == "abort":
        harness.scheduler.abort(["a"])
    else:
        harness.scheduler.preempt_all()
    harness.add("b", prompt)
    request = harness.scheduler.state.requests["b"]
    assert harness.scheduler.kv.get_computed_blocks(request).num_tokens == 0
    harness.core.check_invariants()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_equal_prompts_in_one_step_do_not_share_unwritten_blocks(asynchronous):
    """Pitfall 4: the oracle checks each hit before anything of the step is written."""
    harness = Harness(long_prefill_token_threshold=2 * BLOCK, async_scheduling=asynchronous)
    for name in ("a", "b"):
        harness.add(name, list(range(4 * BLOCK + 1)))
    harness.drain()
    harness.check_all_finished()
    assert harness.executor.num_hit_tokens == 0


def test_idle_prefix_and_two_new_blocks_exceed_a_pool_of_four():
    """Pitfall 5: it is refused at entry, since it can never fit; with a pool of five it is served with 3
    hits.
    """
    for num_blocks, served in ((4, False), (5, True)):
        harness = Harness(num_blocks=num_blocks)
        harness.add("a", list(range(3 * BLOCK)), max_tokens=1)
        harness.drain()
        big = [*range(3 * BLOCK), *range(100, 100 + 2 * BLOCK - 1)]
        if served:
            harness.add("b", big, max_tokens=1)
            harness.drain()
            harness.check_all_finished()
            assert harness.outputs["b"][-1].num_cached_tokens == 3 * BLOCK
        else:
            with pytest.raises(ValueError, match="prompt='19 tokens'"):
                harness.add("b", big, max_tokens=1)


def test_a_hit_waits_when_its_new_blocks_do_not_fit():
    harness = Harness(num_blocks=6)
    harness.add("a", list(range(2 * BLOCK)), max_tokens=1)
    harness.drain()
    harness.add("other", list(range(50, 50 + 2 * BLOCK + 1)), max_tokens=3)
    harness.step()
    harness.add("b", [*range(2 * BLOCK), *range(90, 90 + BLOCK + 1)], max_tokens=1)
    assert harness.plan() == {"other": 1}  # 2 idle hits and 2 new blocks into 3 free ones
    harness.drain()
    harness.check_all_finished()
    assert harness.outputs["b"][-1].num_cached_tokens == 2 * BLOCK


def test_generated_tokens_serve_the_next_turn():
    harness = Harness()
    first = harness.add("a", list(range(6)), max_tokens=7)
    harness.drain()
    turn = [*first.prompt_token_ids, *harness.tokens("a"), 77]
    harness.add("b", turn, max_tokens=2)
    harness.drain()
    harness.check_all_finished()
    assert harness.outputs["b"][-1].num_cached_tokens == 12  # of 12 computed ones; the 13th was only sampled


def test_prompt_logprobs_come_once_complete_although_the_prompt_is_cached():
    """Pitfall 23."""
    harness = Harness()
    prompt = list(range(2 * BLOCK + 1))
    harness.add("a", prompt, max_tokens=2)
    harness.drain()
    for name in ("b", "c"):
        harness.add(name, prompt, max_tokens=3, prompt_logprobs=1)
        harness.drain()
        outputs = harness.outputs[name]
        assert [entry.token_ids[0] for entry in outputs[0].prompt_logprobs[1:]] == prompt[1:]
        assert outputs[0].prompt_logprobs[0] is None
        assert [output.prompt_logprobs for output in outputs[1:]] == [None, None]
        assert outputs[-1].num_cached_tokens == 0
    harness.check_all_finished()


def test_prompt_logprobs_are_not_sent_again_after_a_preemption():
    harness = Harness()
    harness.add("a", 9, max_tokens=6, prompt_logprobs=1)
    harness.step()
    harness.scheduler.preempt_all()
    harness.drain()
    harness.check_all_finished()
    assert [output.prompt_logprobs is not None for output in harness.outputs["a"]].count(True) == 1


def test_salted_prompts_do_not_share():
    harness = Harness()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None)):
        harness.add(name, list(range(9)), cache_salt=salt, max_tokens=1)
        harness.drain()
    cached = {name: harness.outputs[name][-1].num_cached_tokens for name in "abcd"}
    assert cached == {"a": 0, "b": 0, "c": 8, "d": 0}


def test_hits_and_queries_are_counted_in_tokens_of_admitted_requests_only():
    harness = Harness(max_num_seqs=1)
    harness.add("a", list(range(9)), max_tokens=5)
    harness.add("b", list(range(9)), max_tokens=5)  # looked at in every step while it waits
    harness.drain()
    stats = harness.core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (18, 8)
    assert sum(step["prefix_hit_tokens"] for step in harness.steps()) == 8
    assert [event["tokens"] for event in harness.events("prefix_hit")] == [8]


def test_reset_forgets_and_may_preempt():
    harness = Harness()
    harness.add("a", list(range(9)), max_tokens=6)
    harness.step()
    assert not harness.core.reset_prefix_cache()
    assert harness.core.reset_prefix_cache(reset_running_requests=True)
    assert harness.plan() == {"a": 10}  # all its tokens, from nothing
    harness.drain()
    harness.check_all_finished()
    assert harness.core.reset_prefix_cache()
    harness.add("b", list(range(9)), max_tokens=1)
    harness.drain()
    assert harness.outputs["b"][-1].num_cached_tokens == 0


def test_evictions_are_counted():
    harness = Harness(num_blocks=4)
    harness.add("a", list(range(13)), max_tokens=1)
    harness.drain()
    assert harness.steps()[-1]["kv_evicted"] == 0
    harness.add("b", list(range(50, 63)), max_tokens=1)
    harness.drain()
    assert harness.steps()[-1]["kv_evicted"] == 3
    assert harness.scheduler.kv.pool.num_evicted_blocks == 3
