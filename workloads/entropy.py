"""Randomness that is the same in every process, version of Python and number of workers."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def entropy(*parts: object) -> list[int]:
    """Seed words of a numpy generator from ``parts`` (no ``hash()``: it differs between processes)."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]


def tag(*parts: object) -> str:
    """Eight hexadecimal digits of the same digest: makes a text another one."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:8]


def hashed_ids(keys: NDArray[np.int64], words: list[int], low: int, high: int) -> NDArray[np.int32]:
    """A token id for each key, uniform in [low, high): a function of (key, words) alone, so content that
    has a
    name (block 17 of a trace, position 3) is the same wherever it is asked for. splitmix64, by its
    definition.
    """
    with np.errstate(over="ignore"):
        x = keys.astype(np.uint64) + np.uint64(words[0] << 32 | words[1])
        x += np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    # The upper half scaled to the range: no visible bias for ranges of a vocabulary's size.
    scaled = ((x >> np.uint64(32)) * np.uint64(high - low)) >> np.uint64(32)
    return scaled.astype(np.int32) + np.int32(low)
