"""What the front end gives to a caller: text and tokens of a request, whole or as deltas."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import FinishReason, RequestTimings


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate at one position. ``token_bytes`` are the token's own bytes (not the text's)."""

    token_id: int
    logprob: float
    rank: int | None
    decoded: str
    token_bytes: bytes


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the ``n`` sequences of a request.

    In a stream every field but the last three holds only what is new.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[list[Logprob]] | None = None
    """Per token: the chosen one first, then the best in falling order (the chosen one may come twice)."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    timings: RequestTimings | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """News of a request (stream), or all of it (final)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[list[Logprob] | None] | None = None
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """``cumulative_logprob_<i>`` and ``score_<i>`` of a beam search's sequences; else empty."""
