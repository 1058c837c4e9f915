"""Names of cached prefixes: a chained hash over full blocks.

``h[i] = SHA-256(h[i-1] ‖ tokens of block i ‖ extra keys of block i)``. The hash is cryptographic, so
equal hashes mean equal content and hits are not verified against the tokens; a weak hash would serve
another prompt's KV (vLLM PR 12621).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

ROOT_HASH = sha256(b"llm-serving-workbench prefix cache").digest()
"""Parent of every first block."""


@dataclass(frozen=True, slots=True)
class ExtraKey:
    """Something besides the tokens that the KV content or its visibility depends on.

    The kind is part of the key: a salt ``"x"`` and an adapter ``"x"`` never meet.
    """

    kind: str
    value: str | int | bytes


def encode_extra_keys(keys: Sequence[ExtraKey]) -> bytes:
    """Unambiguous bytes of ``keys``: lengths and types are encoded, so no two key lists collide. No keys:
    empty.
    """
    return msgspec.msgpack.encode([(key.kind, key.value) for key in keys]) if keys else b""


def hash_block(parent: bytes, token_ids: Sequence[int], extra: bytes = b"") -> bytes:
    """Hash of one full block; all blocks of a pool have the same size, so the concatenation is unambiguous.

    Raises:
        OverflowError, TypeError: a token id is not a 64-bit integer.
    """
    return sha256(parent + array("q", token_ids).tobytes() + extra).digest()


def extend_block_hashes(
    hashes: list[bytes], token_ids: Sequence[int], block_size: int, first_block_keys: Sequence[ExtraKey] = ()
) -> None:
    """Append to ``hashes`` those of all full blocks of ``token_ids`` that it lacks.

    ``first_block_keys`` enter the first block only: the chain carries them to all others.
    """
    for index in range(len(hashes), len(token_ids) // block_size):
        parent = hashes[-1] if hashes else ROOT_HASH
        extra = encode_extra_keys(first_block_keys) if index == 0 else b""
        start = index * block_size
        hashes.append(hash_block(parent, token_ids[start : start + block_size], extra))
