"""Lives of KV blocks: taken, hit, reused."""

from __future__ import annotations

from engine.clock import VirtualClock
from engine.kv.block import KVCacheBlock
from engine.kv.residency import MAX_GAPS, BlockResidency
from engine.messages import KVBlockEviction
from tests.scheduler.harness import Harness

S = 1_000_000_000


def test_a_life_is_measured_when_it_ends() -> None:
    clock, block = VirtualClock(), KVCacheBlock(1)
    residency = BlockResidency(clock, 1.0)
    residency.on_taken(block)
    clock.advance_ns(2 * S)
    residency.on_hit([block])
    clock.advance_ns(3 * S)
    residency.on_hit([block, KVCacheBlock(2)])  # one that nobody follows
    clock.advance_ns(4 * S)
    assert residency.take_evictions() == []
    residency.on_taken(block)
    expected = KVBlockEviction(lifetime_ns=9 * S, idle_ns=4 * S, reuse_gaps_ns=[3 * S])
    assert residency.take_evictions() == [expected]
    assert residency.take_evictions() == []
    clock.advance_ns(S)
    residency.on_taken(block)
    assert residency.take_evictions() == [KVBlockEviction(lifetime_ns=S, idle_ns=S, reuse_gaps_ns=[])]


def test_only_the_newest_hits_are_remembered_and_a_reset_ends_no_life() -> None:
    clock, block = VirtualClock(), KVCacheBlock(1)
    residency = BlockResidency(clock, 1.0)
    residency.on_taken(block)
    for gap in range(1, 9):
        clock.advance_ns(gap)
        residency.on_hit([block])
    residency.on_taken(block)
    (life,) = residency.take_evictions()
    assert life.reuse_gaps_ns == [6, 7, 8][-(MAX_GAPS - 1) :]
    residency.forget()
    residency.on_taken(block)
    assert residency.take_evictions() == []


def test_about_the_asked_share_is_followed_and_always_the_same() -> None:
    def followed(sample: float) -> int:
        residency = BlockResidency(VirtualClock(), sample)
        for _ in range(2):
            for block_id in range(1, 5001):
                residency.on_taken(KVCacheBlock(block_id))
        return len(residency.take_evictions())

    assert followed(1.0) == 5000
    assert followed(0.1) == followed(0.1)
    assert 400 < followed(0.1) < 600


def test_the_core_tells_what_became_of_the_blocks() -> None:
    harness = Harness(
        num_blocks=2, block_size=4, max_num_seqs=1, kv_cache_metrics=True, kv_cache_metrics_sample=1.0
    )
    harness.add("first", [1, 2, 3, 4, 5], max_tokens=1)
    harness.drain()
    harness.clock.advance_ns(S)
    harness.add("hit", [1, 2, 3, 4, 5], max_tokens=1)
    harness.drain()
    harness.clock.advance_ns(S)
    harness.add("other", [9] * 5, max_tokens=1)
    lives = []
    while harness.core.has_work():
        harness.clock.advance_ns(1)
        lives += harness.core.step().kv_evictions
    # "hit" reused the block behind the shared prefix, "other" reuses that and the prefix itself
    assert [life.lifetime_ns // S for life in lives] == [1, 2]
    assert [life.idle_ns // S for life in lives] == [1, 1]


def test_nothing_is_followed_unless_asked_for() -> None:
    harness = Harness(num_blocks=2, block_size=4, max_num_seqs=1)
    assert harness.scheduler.kv.pool.residency is None
