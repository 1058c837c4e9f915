"""What must hold for the KV pool between any two operations."""

from __future__ import annotations

from collections import Counter

from engine.errors import EngineError
from engine.kv.manager import KVCacheManager
from engine.request import Request


class InvariantError(EngineError):
    """The engine's books don't balance: a bug. The engine must not go on."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def check_kv_invariants(kv: KVCacheManager, requests: dict[str, Request]) -> None:
    """References, free list and cache index agree; every cached block's chain is its holder's prefix.

    Args:
        requests: the unfinished requests by id.

    Raises:
        InvariantError: naming what does not hold.
    """
    pool = kv.pool
    references: Counter[int] = Counter()
    for request_id, table in kv.tables.items():
        require(request_id in requests, f"finished request {request_id!r} holds blocks")
        ids = [block.block_id for block in table]
        require(len(ids) == len(set(ids)), f"block table of {request_id!r} has a block twice: {ids}")
        references.update(ids)
    free_ids = [block.block_id for block in pool.free_queue]
    free = set(free_ids)
    require(len(free) == len(free_ids) == pool.num_free_blocks, "the free list's length is wrong")
    require(
        pool.null_block.ref_cnt == 0 and 0 not in free and 0 not in references, "the null block is in use"
    )
    num_free_cached = 0
    for block in pool.blocks[
        1:
    ]:  # no message is built unless it is needed: this loop runs over the whole pool
        if block.ref_cnt != references[block.block_id]:
            raise InvariantError(f"{block!r}: held {references[block.block_id]} times")
        if (block.ref_cnt == 0) != (block.block_id in free):
            raise InvariantError(f"{block!r}: free list and references disagree")
        if block.block_hash is not None:
            if pool.find(block.block_hash) is not block:
                raise InvariantError(f"{block!r} has a hash but can't be found")
            num_free_cached += block.ref_cnt == 0
    require(num_free_cached == pool.num_free_cached_blocks, "the count of free cached blocks is wrong")
    for block_hash, block in pool.cached_blocks.items():
        if block.block_hash != block_hash:
            raise InvariantError(f"{block!r} is found under another hash")
    for request_id, table in kv.tables.items():
        _check_chain(requests[request_id], kv, [block.block_hash for block in table])
    if not requests:
        require(
            pool.num_free_blocks == pool.num_usable_blocks, "blocks are held although there is no request"
        )


def _check_chain(request: Request, kv: KVCacheManager, table_hashes: list[bytes | None]) -> None:
    """A findable block of a table is full, and named by the request's own prefix."""
    require(
        len(request.block_hashes) <= request.num_tokens // kv.block_size,
        f"{request!r} hashed an unfinished block",
    )
    for index, block_hash in enumerate(table_hashes):
        if block_hash is None:
            continue
        if index >= len(request.block_hashes) or block_hash != request.block_hashes[index]:
            raise InvariantError(f"{request!r}: block {index} is found under a hash that is not its prefix")
