from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.kv.hashing import ROOT_HASH, ExtraKey, encode_extra_keys, extend_block_hashes, hash_block

TOKENS = st.lists(st.integers(0, 3), min_size=2, max_size=2)
KEYS = st.lists(
    st.builds(
        ExtraKey,
        st.sampled_from(["cache_salt", "adapter", ""]),
        st.text("ab", max_size=2) | st.integers(0, 2) | st.binary(max_size=2),
    ),
    max_size=2,
)


def exact(keys: list[ExtraKey]) -> list[tuple[str, str, object]]:
    return [(key.kind, type(key.value).__name__, key.value) for key in keys]


@given(TOKENS, TOKENS, KEYS, KEYS)
def test_equal_hashes_mean_equal_content(tokens_a, tokens_b, keys_a, keys_b):
    """Pitfall 21."""
    hash_a = hash_block(ROOT_HASH, tokens_a, encode_extra_keys(keys_a))
    hash_b = hash_block(ROOT_HASH, tokens_b, encode_extra_keys(keys_b))
    assert (hash_a == hash_b) == (tokens_a == tokens_b and exact(keys_a) == exact(keys_b))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([ExtraKey("cache_salt", "x")], [ExtraKey("adapter", "x")]),
        ([ExtraKey("a", "bc")], [ExtraKey("ab", "c")]),
        ([ExtraKey("a", "1")], [ExtraKey("a", 1)]),
        ([ExtraKey("a", "1")], [ExtraKey("a", b"1")]),
        ([ExtraKey("a", "x"), ExtraKey("b", "y")], [ExtraKey("b", "y"), ExtraKey("a", "x")]),
        ([], [ExtraKey("cache_salt", "")]),
    ],
)
def test_keys_are_typed_and_delimited(one, other):
    assert encode_extra_keys(one) != encode_extra_keys(other)


def test_hash_is_strong_and_independent_of_python_hashing():
    """Tokens whose Python hashes collide (-1 and -2, and 2**61-1 and 0) differ here."""
    assert hash_block(ROOT_HASH, [-1]) != hash_block(ROOT_HASH, [-2])
    assert hash_block(ROOT_HASH, [2**61 - 1]) != hash_block(ROOT_HASH, [0])
    assert len(hash_block(ROOT_HASH, [1])) == 32


def test_chain_covers_full_blocks_only_and_is_extended_in_place():
    hashes: list[bytes] = []
    extend_block_hashes(hashes, [1, 2, 3, 4, 5], 2)
    first = hash_block(ROOT_HASH, [1, 2])
    assert hashes == [first, hash_block(first, [3, 4])]
    extend_block_hashes(hashes, [1, 2, 3, 4, 5, 6], 2)
    assert hashes[2] == hash_block(hashes[1], [5, 6])


def test_keys_of_the_first_block_are_carried_on():
    plain: list[bytes] = []
    salted: list[bytes] = []
    extend_block_hashes(plain, [1, 2, 3, 4], 2)
    extend_block_hashes(salted, [1, 2, 3, 4], 2, [ExtraKey("cache_salt", "s")])
    assert not set(plain) & set(salted)


def test_a_token_that_is_no_integer_is_an_error():
    with pytest.raises(TypeError):
        hash_block(ROOT_HASH, ["1"])  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        hash_block(ROOT_HASH, [2**63])
