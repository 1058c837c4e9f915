"""Logprobs in OpenAI's two shapes, and prompt logprobs in vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.frontend.outputs import Logprob

LOWEST = -9999.0
"""JSON has no -inf; OpenAI writes this."""


def finite(logprob: float) -> float:
    """``logprob`` as JSON can carry it."""
    return max(logprob, LOWEST) if logprob == logprob else LOWEST


def token_text(entry: Logprob, as_ids: bool) -> str:
    """The token's own text, or ``token_id:<id>`` when the client asked for ids (texts of two tokens can be
    equal).
    """
    return f"token_id:{entry.token_id}" if as_ids else entry.decoded


def chat_logprobs(positions: Sequence[Sequence[Logprob]], top: int, as_ids: bool) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion.

    Args:
        positions: per token: the chosen one first, then the best in falling order.
        top: how many of the best to list.
    """
    content = []
    for entries in positions:
        chosen = _chat_entry(entries[0], as_ids)
        chosen["top_logprobs"] = [_chat_entry(entry, as_ids) for entry in _best(entries, top)]
        content.append(chosen)
    return {"content": content, "refusal": None}


def _best(entries: Sequence[Logprob], top: int) -> Sequence[Logprob]:
    """``top`` = -1: all of the vocabulary."""
    return entries[1:] if top < 0 else entries[1 : top + 1]


def _chat_entry(entry: Logprob, as_ids: bool) -> dict[str, Any]:
    return {
        "token": token_text(entry, as_ids),
        "logprob": finite(entry.logprob),
        "bytes": list(entry.token_bytes),
    }


class CompletionLogprobs:
    """Builds ``choices[].logprobs`` of a text completion, and remembers the text offset from one delta to
    the next.

    Args:
        top: how many of the best tokens to list.
        as_ids: name tokens ``token_id:<id>``.
        decode: text of a token, for those that come without logprobs.
    """

    def __init__(self, top: int, as_ids: bool, decode: Callable[[int], str]) -> None:
        self._top = top
        self._as_ids = as_ids
        self._decode = decode
        self._offset = 0

    def format(
        self, positions: Sequence[Sequence[Logprob] | None], token_ids: Sequence[int]
    ) -> dict[str, Any]:
        """Four parallel lists, as long as ``token_ids``. A position without logprobs (a prompt's first
        token) has null values.

        Args:
            positions: per token: the chosen one first, then the best; None where nothing precedes the token.
        """
        tokens: list[str] = []
        token_logprobs: list[float | None] = []
        top_logprobs: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, entries in zip(token_ids, positions, strict=True):
            text = entries[0].decoded if entries else self._decode(token_id)
            tokens.append(f"token_id:{token_id}" if self._as_ids else text)
            token_logprobs.append(finite(entries[0].logprob) if entries else None)
            top_logprobs.append(self._top_of(entries) if entries else None)
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": offsets,
        }

    def _top_of(self, entries: Sequence[Logprob]) -> dict[str, float]:
        """The best and the chosen one: up to ``top + 1`` entries. The better of two tokens with one text
        stays.
        """
        listed = {token_text(entry, self._as_ids): finite(entry.logprob) for entry in entries[:1]}
        for entry in _best(entries, self._top):
            listed.setdefault(token_text(entry, self._as_ids), finite(entry.logprob))
        return listed


def prompt_logprobs(positions: Sequence[Sequence[Logprob] | None]) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: per prompt token a map from token id to logprob, rank and text, and beside
    them the token's bytes, as in chat logprobs.
    """
    return [
        None
        if entries is None
        else {
            str(entry.token_id): {
                "logprob": finite(entry.logprob),
                "rank": entry.rank,
                "decoded_token": entry.decoded,
                "bytes": list(entry.token_bytes),
            }
            for entry in reversed(entries)
        }
        for entries in positions
    ]
