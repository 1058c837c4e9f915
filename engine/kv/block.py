"""A KV block's bookkeeping, and the free list."""

from __future__ import annotations

from collections.abc import Iterator


class KVCacheBlock:
    """``ref_cnt`` requests hold the block; ``block_hash`` is set while the block can be found in the
    prefix cache.
    """

    __slots__ = ("block_hash", "block_id", "next", "prev", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.prev: KVCacheBlock | None = None
        self.next: KVCacheBlock | None = None

    def __repr__(self) -> str:
        hashed = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, hash={hashed})"


class FreeBlockQueue:
    """Doubly linked list of free blocks: the head is reused first. Every operation is O(1), also removal
    from the middle.

    The links live in the blocks (as in vLLM), so nothing is allocated. Starts in the order of ``blocks``.
    """

    __slots__ = ("_head", "_tail", "num_free_blocks")

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        # Two sentinels, so that no operation has an edge case.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self.num_free_blocks = 0
        for block in blocks:
            self.append(block)

    def append(self, block: KVCacheBlock) -> None:
        """To be reused last."""
        self._link(block, self._tail.prev, self._tail)

    def prepend(self, block: KVCacheBlock) -> None:
        """To be reused first."""
        self._link(block, self._head, self._head.next)

    def popleft(self) -> KVCacheBlock:
        block = self._head.next
        if block is None or block is self._tail:
            raise IndexError("no free KV block")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        if block.prev is None or block.next is None:
            raise ValueError(f"{block!r} is not in the free list")
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = None
        self.num_free_blocks -= 1

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From the one reused first to the one reused last."""
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def _link(self, block: KVCacheBlock, left: KVCacheBlock | None, right: KVCacheBlock | None) -> None:
        if block.prev is not None or left is None or right is None:
            raise ValueError(f"{block!r} is already in the free list")
        block.prev, block.next = left, right
        left.next = block
        right.prev = block
        self.num_free_blocks += 1
