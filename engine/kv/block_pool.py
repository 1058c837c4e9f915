"""The pool of KV blocks: who is free, who can be found, who is reused next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.errors import InvalidInputError
from engine.kv.block import FreeBlockQueue, KVCacheBlock
from engine.kv.residency import BlockResidency


class BlockPool:
    """Fixed set of blocks with reference counts and an index by content hash (the ideas are vLLM V1's).

    - Block 0 is the null block: it is never free and never given out, so that padding has a harmless
      place to point to.
    - A freed block keeps its hash and can be found until it is reused: that is its eviction.
    - Reuse order: blocks in which nothing can be found, then findable ones by the time they were freed (LRU).
    - A hash names at most one block. Of two blocks with equal content the older stays findable while
      someone holds it; an idle one hands its name over to the newer, which was used more recently.

    Args:
        num_blocks: the null block included, at least 2.
        residency: follows some of the blocks through their lives.
    """

    def __init__(self, num_blocks: int, residency: BlockResidency | None = None) -> None:
        if num_blocks < 2:
            raise InvalidInputError(
                "num_kv_blocks", num_blocks, "at least 2: the null block and one that can be used"
            )
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.residency = residency
        self.free_queue = FreeBlockQueue(self.blocks[1:])
        self.cached_blocks: dict[bytes, KVCacheBlock] = {}
        self.num_evicted_blocks = 0
        """Findable blocks lost to reuse, since the start."""
        self.num_free_cached_blocks = 0
        """Free blocks that can be found."""

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_queue.num_free_blocks

    @property
    def num_used_blocks(self) -> int:
        return self.num_usable_blocks - self.free_queue.num_free_blocks

    def find(self, block_hash: bytes) -> KVCacheBlock | None:
        return self.cached_blocks.get(block_hash)

    def take_new(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks for writing, each held once. The caller has checked ``num_free_blocks``.

        Raises:
            IndexError: there are not enough.
        """
        taken = []
        for _ in range(num_blocks):
            block = self.free_queue.popleft()
            if block.block_hash is not None:
                self._forget(block)
                self.num_free_cached_blocks -= 1
                self.num_evicted_blocks += 1
            block.ref_cnt = 1
            taken.append(block)
            if self.residency is not None:
                self.residency.on_taken(block)
        return taken

    def hold(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take one more reference to findable blocks; free ones leave the free list."""
        if self.residency is not None:
            self.residency.on_hit(blocks)
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_queue.remove(block)
                self.num_free_cached_blocks -= 1
            block.ref_cnt += 1

    def release(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Give back one reference to each block, in the order in which they may be reused."""
        idle: list[KVCacheBlock] = []
        for block in blocks:
            if block.ref_cnt <= 0:
                raise ValueError(f"{block!r} is released more often than it was taken")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                if block.block_hash is None:
                    idle.append(block)
                else:
                    self.free_queue.append(block)
                    self.num_free_cached_blocks += 1
        for block in reversed(idle):
            self.free_queue.prepend(block)

    def make_findable(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Enter a full, written, held block into the prefix cache."""
        known = self.cached_blocks.get(block_hash)
        if known is not None:
            if known.ref_cnt > 0:
                return
            self._forget(known)
            self.num_free_cached_blocks -= 1
            self.free_queue.remove(known)
            self.free_queue.prepend(known)
        block.block_hash = block_hash
        self.cached_blocks[block_hash] = block

    def forget_all(self) -> bool:
        """Empty the prefix cache; refused (False) while any block is held."""
        if self.num_used_blocks:
            return False
        for block in self.cached_blocks.values():
            block.block_hash = None
        self.cached_blocks.clear()
        self.num_free_cached_blocks = 0
        if self.residency is not None:
            self.residency.forget()
        return True

    def count_free(self, blocks: Sequence[KVCacheBlock]) -> int:
        """How many of ``blocks`` lie in the free list: holding them uses up free blocks."""
        return sum(1 for block in blocks if block.ref_cnt == 0)

    def _forget(self, block: KVCacheBlock) -> None:
        if block.block_hash is not None:
            del self.cached_blocks[block.block_hash]
            block.block_hash = None
