"""How long KV blocks live in the pool: a sample of them is followed from being taken to being reused.

The three measures are those of vLLM's ``kv_cache_metrics``. They say whether the pool is too small for its
prefixes: blocks that are reused for others shortly after their last hit would have been hit again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.clock import Clock
from engine.kv.block import KVCacheBlock
from engine.messages import KVBlockEviction

MAX_GAPS = 4
"""Hits remembered of one block: the newest."""
SEED = 0


@dataclass(slots=True)
class _Life:
    taken_ns: int
    hits_ns: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_GAPS))


class BlockResidency:
    """Told by the pool what happens to its blocks.

    Args:
        clock: stamps.
        sample: share of blocks that are followed, above 0 to 1. Which ones is reproducible.
    """

    def __init__(self, clock: Clock, sample: float) -> None:
        self._clock = clock
        self._sample = sample
        self._random = random.Random(SEED)
        self._lives: dict[int, _Life] = {}
        self._evictions: list[KVBlockEviction] = []

    def on_taken(self, block: KVCacheBlock) -> None:
        """``block`` is given out for new content; what it held is gone."""
        life = self._lives.pop(block.block_id, None)
        followed = self._random.random() < self._sample
        if life is None and not followed:
            return
        now_ns = self._clock.now_ns()
        if life is not None:
            self._evictions.append(_eviction(life, now_ns))
        if followed:
            self._lives[block.block_id] = _Life(now_ns)

    def on_hit(self, blocks: Iterable[KVCacheBlock]) -> None:
        """A request shares ``blocks``."""
        for block in blocks:
            life = self._lives.get(block.block_id)
            if life is not None:
                life.hits_ns.append(self._clock.now_ns())

    def forget(self) -> None:
        """The prefix cache was emptied: nothing was evicted for want of room."""
        self._lives.clear()

    def take_evictions(self) -> list[KVBlockEviction]:
        """Those since the last call."""
        evictions, self._evictions = self._evictions, []
        return evictions


def _eviction(life: _Life, now_ns: int) -> KVBlockEviction:
    hits = life.hits_ns
    last_ns = hits[-1] if hits else life.taken_ns
    gaps = [later - earlier for earlier, later in zip(list(hits)[:-1], list(hits)[1:], strict=True)]
    return KVBlockEviction(lifetime_ns=now_ns - life.taken_ns, idle_ns=now_ns - last_ns, reuse_gaps_ns=gaps)
