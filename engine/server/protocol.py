"""Bodies of the OpenAI endpoints, with vLLM's extra sampling fields at the top level.

``None`` means "not given". The structs check types and machine ranges only; what the values mean is checked
by :mod:`engine.frontend.validate`, so that the offline API refuses the same things with the same words.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Fits the wire between front end and core (msgpack int64)."""
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]

Prompt = str | list[str | TokenId | list[TokenId]]
"""One text, several texts, one list of token ids, or several; that a list is of one kind is checked when it
is split.
"""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    """A last event with the usage and no choices."""
    continuous_usage_stats: bool = False
    """Usage so far in every event (vLLM)."""
    include_obfuscation: bool = False


class GenerationFields(msgspec.Struct, kw_only=True):
    """What completions and chat completions share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    # OpenAI's sampling fields
    n: Int | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[TokenId, float] | None = None

    # vLLM's
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Int | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None

    priority: Int = 0
    cache_salt: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False


class CompletionRequest(GenerationFields, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Prompt
    echo: bool = False
    logprobs: Int | None = None
    add_special_tokens: bool = True


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: either ``prompt`` or ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[TokenId]


class ProfileRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of ``/start_profile``."""

    num_steps: Int = 50
    max_seconds: float = 10.0
