"""From token ids to text, piece by piece, such that no piece is ever taken back."""

from __future__ import annotations

import codecs
from collections.abc import Set
from typing import Protocol


class TokenBytes(Protocol):
    """What detokenising needs of a tokenizer."""

    @property
    def special_ids(self) -> Set[int]: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds to a text; special tokens give their name."""
        ...


class IncrementalDetokenizer:
    """Concatenates the tokens' bytes and decodes them as UTF-8.

    Bytes of an unfinished character wait for the next token; what can't become a character any more is
    U+FFFD. So the pieces of :meth:`append` and the rest of :meth:`finish` join to ``b"".join(token
    bytes).decode("utf-8", "replace")``, however the text is cut into tokens.
    """

    def __init__(self, tokenizer: TokenBytes, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped: Set[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def append(self, token_id: int) -> str:
        """Text that is certain now; empty for a skipped token or an unfinished character."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """U+FFFD when the output ends inside a character, else nothing. Call once, after the last token."""
        return self._decoder.decode(b"", final=True)
