"""KV blocks of requests: prefix lookup, allocation, registration after the step, and the one release path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import EngineError
from engine.kv.block import KVCacheBlock
from engine.kv.block_pool import BlockPool
from engine.kv.hashing import ExtraKey, extend_block_hashes
from engine.kv.residency import BlockResidency
from engine.request import Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What a lookup found. The blocks are not held yet: nothing may happen between lookup and
    ``allocate_slots``.
    """

    blocks: Sequence[KVCacheBlock]
    num_tokens: int
    num_recomputed_tokens: int
    """Tokens the cache holds too, but which must be computed again: a request computes at least one token."""


NO_HIT = PrefixHit((), 0, 0)


@dataclass(slots=True)
class PrefixCacheStats:
    """Counters since the start, in tokens. Resumes after a preemption mostly find their own blocks: they
    are apart.
    """

    queries: int = 0
    hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0
    recomputed: int = 0


class KVCacheManager:
    """Block tables of all requests over one pool.

    A block becomes findable in :meth:`cache_blocks` only, which the scheduler calls after the step that
    wrote it: no hit can point to KV that is not there yet, whatever happens to a plan. Blocks leave a
    request in :meth:`free` only.

    Args:
        num_blocks: blocks of the pool, the null block included.
        block_size: tokens in a block.
        enable_caching: reuse blocks of equal prefixes.
        residency: follows some of the blocks through their lives.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool,
        residency: BlockResidency | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks, residency)
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.stats = PrefixCacheStats()
        self.tables: dict[str, list[KVCacheBlock]] = {}
        """Block table of each request that holds blocks, by request id."""
        self._num_registered: dict[str, int] = {}
        """Leading blocks of a table that were found in, or offered to, the prefix cache."""

    @property
    def num_usable_tokens(self) -> int:
        """Tokens of one request that has the pool to itself."""
        return self.pool.num_usable_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_blocks_of(self, request: Request) -> int:
        return len(self.tables.get(request.request_id, ()))

    def block_ids(self, request: Request) -> list[int]:
        return [block.block_id for block in self.tables[request.request_id]]

    def hash_prompt(self, request: Request) -> None:
        """Hash the request's full blocks, so that lookups are cheap."""
        if self.enable_caching:
            self._extend_hashes(request)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Longest cached prefix of full blocks, at most ``num_tokens - 1`` tokens long. Has no side
        effects.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return NO_HIT
        self._extend_hashes(request)
        max_blocks = (request.num_tokens - 1) // self.block_size
        found: list[KVCacheBlock] = []
        for block_hash in request.block_hashes:
            block = self.pool.find(block_hash)
            if block is None:
                break
            if len(found) == max_blocks:  # the whole prompt is cached: its last block is computed once more
                return PrefixHit(found, len(found) * self.block_size, self.block_size)
            found.append(block)
        return PrefixHit(found, len(found) * self.block_size, 0)

    def num_free_blocks_after(self, request: Request, num_tokens: int, hit: PrefixHit = NO_HIT) -> int:
        """Free blocks left when ``request`` had slots for its first ``num_tokens`` tokens; negative: they
        don't fit.

        Hits that nobody holds lie in the free list, so holding them uses free blocks up, too.
        """
        new = self.num_blocks_for(num_tokens) - len(hit.blocks) - self.num_blocks_of(request)
        return self.pool.num_free_blocks - max(new, 0) - self.pool.count_free(hit.blocks)

    def num_blocks_freed_by(self, request: Request, keep: set[int]) -> int:
        """Blocks that only ``request`` holds, those with an id in ``keep`` not counted."""
        return sum(
            1
            for block in self.tables.get(request.request_id, ())
            if block.ref_cnt == 1 and block.block_id not in keep
        )

    def allocate_slots(
        self, request: Request, num_new_tokens: int, hit: PrefixHit = NO_HIT
    ) -> list[int] | None:
        """Give ``request`` slots for ``num_new_tokens`` beyond its computed tokens and the hit.

        Returns:
            Ids of the blocks that were added, the hit's not included; None if the pool has too few, and
            nothing changed.
        """
        num_tokens = request.num_computed_tokens + hit.num_tokens + num_new_tokens
        table = self.tables.get(request.request_id)
        if table is not None and len(table) * self.block_size >= num_tokens:
            return []
        if self.num_free_blocks_after(request, num_tokens, hit) < 0:
            return None
        if table is None:
            table = self.tables[request.request_id] = []
            self._num_registered[request.request_id] = len(hit.blocks)
        elif hit.blocks:
            raise EngineError(f"{request!r} holds blocks already and can't take a prefix hit")
        self.pool.hold(hit.blocks)
        table.extend(hit.blocks)
        new = self.pool.take_new(self.num_blocks_for(num_tokens) - len(table))
        table.extend(new)
        return [block.block_id for block in new]

    def record_lookup(self, request: Request, hit: PrefixHit) -> None:
        """Count a lookup whose request was admitted (a blocked head is looked up again in every step)."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            self.stats.resumed_queries += request.num_tokens
            self.stats.resumed_hits += hit.num_tokens
        else:
            self.stats.queries += request.num_tokens
            self.stats.hits += hit.num_tokens
            self.stats.recomputed += hit.num_recomputed_tokens

    def cache_blocks(self, request: Request, num_written_tokens: int) -> None:
        """Make the request's full blocks findable whose KV a finished step has written."""
        if not self.enable_caching:
            return
        done = self._num_registered[request.request_id]
        full = num_written_tokens // self.block_size
        if full <= done:
            return
        self._extend_hashes(request)
        table = self.tables[request.request_id]
        for index in range(done, full):
            self.pool.make_findable(table[index], request.block_hashes[index])
        self._num_registered[request.request_id] = full

    def free(self, request: Request) -> None:
        """Give up all blocks of a request (none: nothing happens).

        In reverse order, so that a chain is reused from its tail: without its head the rest could not be
        found.
        """
        table = self.tables.pop(request.request_id, None)
        if table is not None:
            del self._num_registered[request.request_id]
            self.pool.release(reversed(table))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; refused (False) while a request holds blocks."""
        return self.pool.forget_all()

    def _extend_hashes(self, request: Request) -> None:
        keys = () if request.cache_salt is None else (ExtraKey("cache_salt", request.cache_salt),)
        extend_block_hashes(request.block_hashes, request.all_token_ids, self.block_size, keys)
