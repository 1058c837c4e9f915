from __future__ import annotations

import pytest

from engine.errors import InvalidInputError
from engine.kv.block import FreeBlockQueue, KVCacheBlock
from engine.kv.block_pool import BlockPool


def ids(blocks) -> list[int]:
    return [block.block_id for block in blocks]


def test_free_queue_keeps_order_and_removes_from_the_middle():
    blocks = [KVCacheBlock(index) for index in range(1, 6)]
    queue = FreeBlockQueue(blocks)
    queue.remove(blocks[2])
    assert ids(queue) == [1, 2, 4, 5]
    assert queue.popleft() is blocks[0]
    queue.append(blocks[0])
    queue.prepend(blocks[2])
    assert ids(queue) == [3, 2, 4, 5, 1]
    assert queue.num_free_blocks == 5


def test_free_queue_refuses_what_it_has_and_what_it_lacks():
    block = KVCacheBlock(1)
    queue = FreeBlockQueue([block])
    with pytest.raises(ValueError, match="already in the free list"):
        queue.append(block)
    queue.popleft()
    with pytest.raises(ValueError, match="not in the free list"):
        queue.remove(block)
    with pytest.raises(IndexError):
        queue.popleft()


def test_null_block_is_never_given_out():
    pool = BlockPool(4)
    assert ids(pool.take_new(3)) == [1, 2, 3]
    assert pool.num_free_blocks == 0
    with pytest.raises(IndexError):
        pool.take_new(1)


def test_a_pool_needs_a_usable_block():
    with pytest.raises(InvalidInputError, match="num_kv_blocks=1"):
        BlockPool(1)


def test_double_release_is_refused():
    """Pitfall 57."""
    pool = BlockPool(4)
    blocks = pool.take_new(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often than it was taken"):
        pool.release(blocks)


def test_reuse_takes_unnamed_blocks_first_then_the_longest_idle():
    pool = BlockPool(6)
    blocks = pool.take_new(5)
    for block, name in zip(blocks[:3], (b"a", b"b", b"c"), strict=True):
        pool.make_findable(block, name)
    pool.release([blocks[1], blocks[3]])
    pool.release([blocks[0], blocks[4], blocks[2]])
    assert ids(pool.free_queue) == [5, 4, 2, 1, 3]
    assert pool.num_free_cached_blocks == 3
    assert ids(pool.take_new(4)) == [5, 4, 2, 1]
    assert pool.num_evicted_blocks == 2
    assert (pool.find(b"a"), pool.find(b"b"), pool.find(b"c")) == (None, None, blocks[2])


def test_holding_a_free_block_takes_it_from_the_free_list():
    pool = BlockPool(4)
    (block,) = pool.take_new(1)
    pool.make_findable(block, b"a")
    pool.release([block])
    pool.hold([block])
    pool.hold([block])
    assert (block.ref_cnt, pool.num_free_blocks, pool.num_free_cached_blocks) == (2, 2, 0)
    pool.release([block])
    assert pool.num_free_blocks == 2
    pool.release([block])
    assert pool.num_free_blocks == 3


def test_of_two_equal_blocks_the_held_one_keeps_the_name():
    pool = BlockPool(4)
    older, newer = pool.take_new(2)
    pool.make_findable(older, b"a")
    pool.make_findable(newer, b"a")
    assert pool.find(b"a") is older
    assert newer.block_hash is None


def test_an_idle_block_hands_its_name_to_an_equal_newer_one():
    pool = BlockPool(4)
    older, newer = pool.take_new(2)
    pool.make_findable(older, b"a")
    pool.release([older])
    pool.make_findable(newer, b"a")
    assert pool.find(b"a") is newer
    assert older.block_hash is None
    assert ids(pool.free_queue) == [1, 3]  # nothing can be found in it: it is reused first
    assert (pool.num_free_cached_blocks, pool.num_evicted_blocks) == (0, 0)


def test_forget_all_is_refused_while_a_block_is_held():
    pool = BlockPool(4)
    held, idle = pool.take_new(2)
    pool.make_findable(idle, b"a")
    pool.release([idle])
    assert not pool.forget_all()
    assert pool.find(b"a") is idle
    pool.release([held])
    assert pool.forget_all()
    assert (pool.find(b"a"), idle.block_hash, pool.num_free_cached_blocks) == (None, None, 0)
