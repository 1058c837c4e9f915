from __future__ import annotations

import pytest

from engine.kv.invariants import InvariantError, check_kv_invariants
from engine.kv.manager import KVCacheManager
from engine.request import Request
from tests.scheduler.harness import make_request

BLOCK_SIZE = 4


def manager(num_blocks: int = 8, *, enable_caching: bool = True) -> KVCacheManager:
    """``num_blocks`` usable ones."""
    return KVCacheManager(num_blocks + 1, BLOCK_SIZE, enable_caching=enable_caching)


def request(name: str, prompt: list[int], **fields) -> Request:
    return Request(make_request(name, prompt, **fields), max_total_tokens=1000, order=0, queued_ns=0)


def compute(kv: KVCacheManager, req: Request, num_tokens: int | None = None) -> list[int] | None:
    """Admit, allocate for ``num_tokens`` more (default: all), and register as if the step had run."""
    hit = kv.get_computed_blocks(req) if kv.num_blocks_of(req) == 0 else None
    num_hit = hit.num_tokens if hit else 0
    num_new = num_tokens if num_tokens is not None else req.num_tokens - req.num_computed_tokens - num_hit
    new = kv.allocate_slots(req, num_new, hit) if hit else kv.allocate_slots(req, num_new)
    if new is not None:
        req.num_computed_tokens += num_hit + num_new
        kv.cache_blocks(req, req.num_computed_tokens)
    return new


def hit_tokens(kv: KVCacheManager, req: Request) -> tuple[int, int]:
    hit = kv.get_computed_blocks(req)
    return hit.num_tokens, hit.num_recomputed_tokens


def test_blocks_are_given_out_as_tokens_need_them():
    kv, req = manager(), request("a", list(range(9)))
    assert kv.allocate_slots(req, 5) == [1, 2]
    req.num_computed_tokens = 5
    assert kv.allocate_slots(req, 3) == []
    req.num_computed_tokens = 8
    assert kv.allocate_slots(req, 1) == [3]
    assert kv.block_ids(req) == [1, 2, 3]


def test_too_few_blocks_changes_nothing():
    kv, req = manager(2), request("a", list(range(9)))
    assert kv.allocate_slots(req, 9) is None
    assert kv.pool.num_free_blocks == 2
    assert req.request_id not in kv.tables


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, (0, 0)), (3, (0, 0)), (4, (0, 4)), (5, (4, 0)), (7, (4, 0)), (8, (4, 4)), (9, (8, 0)), (12, (8, 4))],
)
def test_at_most_all_tokens_but_one_hit(num_tokens, expected):
    """Pitfall 6: a fully cached prompt of whole blocks computes its last block again."""
    kv = manager()
    first = request("a", list(range(12)))
    compute(kv, first)
    assert hit_tokens(kv, request("b", list(range(num_tokens)))) == expected


def test_a_block_is_findable_only_after_the_step():
    """Pitfalls 3 and 4."""
    kv, req = manager(), request("a", list(range(9)))
    kv.allocate_slots(req, 9)
    req.num_computed_tokens = 9
    assert hit_tokens(kv, request("b", list(range(9)))) == (0, 0)
    kv.cache_blocks(req, 9)
    assert hit_tokens(kv, request("b", list(range(9)))) == (8, 0)


def test_blocks_freed_before_their_step_ended_are_not_findable():
    kv, req = manager(), request("a", list(range(9)))
    kv.allocate_slots(req, 9)
    kv.free(req)
    assert hit_tokens(kv, request("b", list(range(9)))) == (0, 0)
    check_kv_invariants(kv, {})


def test_idle_hits_count_as_consumed():
    """Pitfall 5: 2 new blocks + 3 idle hits do not fit into 4 free ones."""
    kv = manager(4)
    first = request("a", list(range(13)))
    compute(kv, first, 12)
    kv.free(first)
    big = request("b", [*range(12), *range(100, 108)])
    hit = kv.get_computed_blocks(big)
    assert hit.num_tokens == 12
    assert kv.num_free_blocks_after(big, 20, hit) == -1
    assert kv.allocate_slots(big, 8, hit) is None
    assert kv.pool.num_free_blocks == 4
    assert kv.allocate_slots(big, 4, hit) == [4]
    assert kv.block_ids(big) == [1, 2, 3, 4]


def test_hits_that_are_held_cost_nothing():
    kv = manager(4)
    compute(kv, request("a", list(range(13))), 12)
    big = request("b", [*range(12), 100])
    hit = kv.get_computed_blocks(big)
    assert kv.num_free_blocks_after(big, 13, hit) == 0
    assert kv.allocate_slots(big, 1, hit) == [4]


def test_generated_tokens_are_cached_too():
    kv, req = manager(), request("a", [1, 2, 3])
    compute(kv, req)
    for token in (4, 5):
        req.append_output_token(token, 0)
        compute(kv, req)
    kv.free(req)
    assert hit_tokens(kv, request("b", [1, 2, 3, 4, 5])) == (4, 0)


def test_salts_do_not_meet():
    kv = manager()
    compute(kv, request("a", list(range(9)), cache_salt="x"))
    assert hit_tokens(kv, request("b", list(range(9)), cache_salt="x")) == (8, 0)
    assert hit_tokens(kv, request("c", list(range(9)), cache_salt="y")) == (0, 0)
    assert hit_tokens(kv, request("d", list(range(9)))) == (0, 0)


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    """Pitfall 23."""
    kv = manager()
    req = request("a", list(range(9)), prompt_logprobs=1)
    compute(kv, req)
    assert hit_tokens(kv, request("b", list(range(9)), prompt_logprobs=1)) == (0, 0)
    assert hit_tokens(kv, request("c", list(range(9)))) == (8, 0)


def test_without_caching_nothing_is_found():
    kv = manager(enable_caching=False)
    compute(kv, request("a", list(range(9))))
    assert hit_tokens(kv, request("b", list(range(9)))) == (0, 0)
    kv.record_lookup(request("b", list(range(9))), kv.get_computed_blocks(request("b", list(range(9)))))
    assert kv.stats.queries == 0


def test_a_chain_is_reused_from_its_tail():
    kv = manager(4)
    first = request("a", list(range(13)))
    compute(kv, first)
    kv.free(first)
    assert [block.block_id for block in kv.pool.free_queue] == [4, 3, 2, 1]
    other = request("b", list(range(50, 58)))
    compute(kv, other)
    assert kv.block_ids(other) == [4, 3]
    assert kv.pool.num_evicted_blocks == 1
    assert hit_tokens(kv, request("c", list(range(13)))) == (8, 0)


def test_least_recently_freed_prefix_goes_first():
    kv = manager(4)
    old, new = request("a", list(range(8))), request("b", list(range(50, 58)))
    compute(kv, old)
    compute(kv, new)
    kv.free(old)
    kv.free(new)
    again = request("c", list(range(9)))  # uses the old prefix: now the other one is the least recent
    hit = kv.get_computed_blocks(again)
    kv.pool.hold(hit.blocks)
    kv.pool.release(reversed(hit.blocks))
    kv.pool.take_new(2)
    assert hit_tokens(kv, request("d", list(range(9)))) == (8, 0)
    assert hit_tokens(kv, request("e", list(range(50, 59)))) == (0, 0)


def test_free_twice_is_harmless_and_counted_once():
    kv, req = manager(), request("a", list(range(9)))
    compute(kv, req)
    kv.free(req)
    kv.free(req)
    assert kv.pool.num_free_blocks == 8
    check_kv_invariants(kv, {})


def test_reset_is_refused_while_blocks_are_held():
    kv, req = manager(), request("a", list(range(9)))
    compute(kv, req)
    assert not kv.reset_prefix_cache()
    kv.free(req)
    assert kv.reset_prefix_cache()
    assert hit_tokens(kv, request("b", list(range(9)))) == (0, 0)


def test_resumes_are_counted_apart():
    kv = manager()
    compute(kv, request("a", list(range(9))))
    fresh, resumed = request("b", list(range(8))), request("c", list(range(9)))
    resumed.num_preemptions = 1
    kv.record_lookup(fresh, kv.get_computed_blocks(fresh))
    kv.record_lookup(resumed, kv.get_computed_blocks(resumed))
    stats = kv.stats
    assert (stats.queries, stats.hits, stats.recomputed) == (8, 4, 4)
    assert (stats.resumed_queries, stats.resumed_hits) == (9, 8)


def corrupt_free_list(kv: KVCacheManager, req: Request) -> None:
    kv.pool.free_queue.popleft()


def corrupt_references(kv: KVCacheManager, req: Request) -> None:
    kv.tables["a"][0].ref_cnt += 1


def corrupt_index(kv: KVCacheManager, req: Request) -> None:
    kv.pool.cached_blocks.clear()


def corrupt_chain(kv: KVCacheManager, req: Request) -> None:
    kv.tables["a"].reverse()


def corrupt_null_block(kv: KVCacheManager, req: Request) -> None:
    kv.pool.null_block.ref_cnt = 1


def corrupt_table(kv: KVCacheManager, req: Request) -> None:
    kv.tables["a"].append(kv.tables["a"][0])


@pytest.mark.parametrize(
    "corrupt",
    [corrupt_free_list, corrupt_references, corrupt_index, corrupt_chain, corrupt_null_block, corrupt_table],
)
def test_invariants_notice(corrupt):
    kv, req = manager(), request("a", list(range(9)))
    compute(kv, req)
    check_kv_invariants(kv, {"a": req})
    corrupt(kv, req)
    with pytest.raises(InvariantError):
        check_kv_invariants(kv, {"a": req})


def test_invariants_notice_a_leak_at_idle():
    kv, req = manager(), request("a", list(range(9)))
    compute(kv, req)
    with pytest.raises(InvariantError, match="finished request 'a' holds blocks"):
        check_kv_invariants(kv, {})
