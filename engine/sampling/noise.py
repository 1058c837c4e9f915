"""Counter-based randomness: one uniform number per (seed, position), and nothing else goes in.

So a sampled token cannot depend on neighbours, on how a prompt was chunked, on a preemption or on how often
a row was moved. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014), applied once to the seed and once to seed and position
together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1

U64Array = npt.NDArray[np.uint64]
F64Array = npt.NDArray[np.float64]


def _mix(x: U64Array) -> U64Array:
    x = (x ^ (x >> np.uint64(30))) * _MUL_1
    x = (x ^ (x >> np.uint64(27))) * _MUL_2
    return x ^ (x >> np.uint64(31))


def seed_key(seed: int) -> int:
    """The mixed form of ``seed`` (any int; taken modulo 2**64) that :func:`uniforms` wants."""
    raw = np.array([seed & _MASK_64], dtype=np.uint64)
    return int(_mix(raw + _GOLDEN_GAMMA)[0])


def uniforms(keys: U64Array, positions: npt.NDArray[np.int64]) -> F64Array:
    """Uniform numbers in [0, 1) with 53 random bits, one for each pair of key (see :func:`seed_key`) and
    position.
    """
    counter = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    bits = _mix(_mix(keys + counter) ^ keys)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
