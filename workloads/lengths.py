"""Token counts drawn from a length distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.fields import Constant, Lognormal, Uniform


def sample(length: Constant | Uniform | Lognormal, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` lengths in tokens, each at least 1."""
    if isinstance(length, Constant):
        return np.full(count, length.value, np.int64)
    if isinstance(length, Uniform):
        return rng.integers(length.low, length.high, size=count, endpoint=True, dtype=np.int64)
    variance = np.log1p(length.cv**2)
    drawn = rng.lognormal(np.log(length.mean) - variance / 2, np.sqrt(variance), size=count)
    return np.clip(np.rint(drawn), length.low, length.high).astype(np.int64)
