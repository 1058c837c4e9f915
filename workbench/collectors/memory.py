"""How fast this machine reads memory: the floor that decode's context cost is held against."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 64 << 20
_REPEATS = 4


def read_bandwidth_gb_s(threads: int | None = None) -> float:
    """Best of a few readings of memory that no cache holds, all cores together (1 GB = 1e9 bytes).

    Takes about a fifth of a second.

    Args:
        threads: default: the cores that this process may use.
    """
    count = threads or len(os.sched_getaffinity(0))
    arrays = [np.ones(_BYTES // 4, np.float32) for _ in range(count)]
    best = 0.0
    with ThreadPoolExecutor(count) as pool:
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            list(pool.map(np.sum, arrays))
            best = max(best, count * _BYTES / (time.perf_counter() - begin) / 1e9)
    return best
