"""A tokenizer whose ids 0 to 255 are bytes, with a few longer tokens and two special ones: any text can be
cut anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidInputError

BOS, EOS = 256, 257
MERGES = (
    b"ab",
    b"END",
    b"E",
    b"ND",
    b" Paris",
    "é".encode(),
    "😀".encode()[:2],
    "😀".encode()[2:],
    b"STOP here",
)
FIRST_MERGE = 258
VOCAB_SIZE = FIRST_MERGE + len(MERGES)


class ByteTokenizer:
    """The part of :class:`engine.frontend.tokenizer.Tokenizer` that the front end uses. Encoding never
    merges.
    """

    vocab_size = VOCAB_SIZE
    special_ids = frozenset({BOS, EOS})
    longest_token = 8

    def __init__(self, *, add_bos: bool = False) -> None:
        self._add_bos = add_bos

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * (self._add_bos and add_special_tokens) + list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        if token_id >= FIRST_MERGE:
            return MERGES[token_id - FIRST_MERGE]
        return b"<bos>" if token_id == BOS else b"<eos>"

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (i for i in token_ids if not (skip_special_tokens and i in self.special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        for message in messages:
            if message["role"] not in ("user", "assistant"):
                raise InvalidInputError("messages", message["role"], "user or assistant")
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "".join(lines) + ("assistant: " if add_generation_prompt else "")


def merge_id(text: bytes) -> int:
    """Id of one of the longer tokens."""
    return FIRST_MERGE + MERGES.index(text)
