"""Ranks as threads of this process: collectives as in production, without the start of processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch.distributed import HashStore

from engine.parallel.group import CollectiveGroup

T = TypeVar("T")

TIMEOUT_S = 30.0


def on_ranks(size: int, work: Callable[[CollectiveGroup], T], timeout_s: float = TIMEOUT_S) -> list[T]:
    """``work(group)`` on every rank at the same time; results by rank."""
    store = HashStore()

    def run(rank: int) -> T:
        return work(CollectiveGroup(store, rank, size, torch.device("cpu"), timeout_s))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
