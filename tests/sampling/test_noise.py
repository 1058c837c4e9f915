"""Noise: uniform, and a function of seed and position only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engine.sampling.noise import seed_key, uniforms

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**40)


def uniform(seed: int, position: int) -> float:
    return float(uniforms(np.array([seed_key(seed)], dtype=np.uint64), np.array([position]))[0])


def test_the_key_is_splitmix64() -> None:
    # First output of the reference generator (Vigna's splitmix64.c) for the seeds 0 and 1234567.
    assert seed_key(0) == 0xE220A8397B1DCDAF
    assert seed_key(1234567) == 6457827717110365317


@given(SEEDS, POSITIONS)
def test_in_range_and_repeatable(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert uniform(seed, position) == value


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=20))
def test_a_batch_gives_what_each_gives_alone(pairs: list[tuple[int, int]]) -> None:
    keys = np.array([seed_key(seed) for seed, _ in pairs], dtype=np.uint64)
    batch = uniforms(keys, np.array([position for _, position in pairs]))
    assert batch.tolist() == [uniform(seed, position) for seed, position in pairs]


def test_uniform_along_positions_along_seeds_and_uncorrelated() -> None:
    count = 20_000
    along_positions = uniforms(np.full(count, seed_key(7), dtype=np.uint64), np.arange(count))
    keys = np.array([seed_key(seed) for seed in range(count)], dtype=np.uint64)
    along_seeds = uniforms(keys, np.full(count, 11))
    diagonal = uniforms(keys, np.arange(count))
    for sample in (along_positions, along_seeds, diagonal):
        assert stats.kstest(sample, "uniform").pvalue > 0.001
        assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 0.03
    assert (
        len(np.unique(np.concatenate([along_positions, along_seeds]))) == 2 * count - 1
    )  # (7, 11) is in both
