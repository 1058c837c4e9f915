"""From request fields to :class:`SamplingParams` (or :class:`BeamSearchParams`) and prompts."""

from __future__ import annotations

from typing import Any

from engine.frontend.beam_search import BeamSearchParams
from engine.sampling_params import SamplingParams
from engine.server.errors import bad_request
from engine.server.protocol import ChatCompletionRequest, CompletionRequest, GenerationFields

MAX_PROMPTS = 2048
"""Prompts in one completion request (OpenAI's limit for batched input)."""
MAX_SEQUENCES = 4096
"""Sequences of one completion request: prompts times ``n``."""
_SCALARS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)
_LISTS = ("stop_token_ids", "bad_words", "allowed_token_ids")
_BEAM_FIELDS = frozenset(
    {"n", "max_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "logprobs"}
)
"""What a beam search honours; ``temperature`` may say 0 or 1, for nothing is drawn."""

Params = SamplingParams | BeamSearchParams


def completion_params(request: CompletionRequest) -> Params:
    """``max_tokens`` defaults to 16 (OpenAI); ``max_tokens=0`` with ``echo`` scores the prompt and generates
    nothing.
    """
    _check_shared(request)
    values = _given(request)
    if request.logprobs is not None:
        values["logprobs"] = request.logprobs
    if request.echo and request.logprobs is not None:
        if request.prompt_logprobs not in (None, request.logprobs):
            raise bad_request(
                "prompt_logprobs",
                f"prompt_logprobs={request.prompt_logprobs}: with echo it is logprobs ({request.logprobs})",
            )
        values["prompt_logprobs"] = request.logprobs
    if request.max_tokens is not None:
        values["max_tokens"] = 1 if scores_only(request) else request.max_tokens
    return _params(request, values)


def scores_only(request: CompletionRequest) -> bool:
    """The engine generates one token, as it must; the answer leaves it out."""
    return request.echo and request.max_tokens == 0


def chat_params(request: ChatCompletionRequest) -> Params:
    """``max_tokens`` defaults to all the room that the context leaves."""
    _check_shared(request)
    values = _given(request)
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise bad_request(
            "max_tokens",
            f"max_tokens={request.max_tokens}: max_completion_tokens={request.max_completion_tokens} says "
            "otherwise; send one of them",
        )
    values["max_tokens"] = limits.pop() if limits else None
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs", f"top_logprobs={request.top_logprobs}: needs logprobs=true")
    if request.top_logprobs is not None and request.top_logprobs < 0:
        raise bad_request("top_logprobs", f"top_logprobs={request.top_logprobs}: 0 or more")
    if request.logprobs:
        values["logprobs"] = request.top_logprobs or 0
    return _params(request, values)


def _params(request: GenerationFields, values: dict[str, Any]) -> Params:
    return _beam_params(request, values) if request.use_beam_search else SamplingParams(**values)


def _beam_params(request: GenerationFields, values: dict[str, Any]) -> BeamSearchParams:
    """``n`` is the width of the search, as in vLLM; the chosen tokens' logprobs can be had, no others."""
    if values.get("temperature") in (0, 1):
        del values["temperature"]
    if not values.get("logit_bias", True):
        del values["logit_bias"]
    if request.priority:
        values["priority"] = request.priority
    if values.get("logprobs"):
        raise bad_request("logprobs", f"logprobs={values['logprobs']}: with use_beam_search only 0")
    for name, value in values.items():
        if name not in _BEAM_FIELDS:
            raise bad_request(name, f"{name}={value!r:.80}: not with use_beam_search")
    values["logprobs"] = "logprobs" in values
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    return BeamSearchParams(beam_width=values.get("n", 1), length_penalty=penalty, **values)


def _given(request: GenerationFields) -> dict[str, Any]:
    values = {name: value for name in _SCALARS if (value := getattr(request, name)) is not None}
    for name in _LISTS:
        if (value := getattr(request, name)) is not None:
            values[name] = tuple(value)
    if request.stop is not None:
        values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    return values


def _check_shared(request: GenerationFields) -> None:
    options = request.stream_options
    if options is not None and not request.stream:
        raise bad_request("stream_options", "stream_options: only with stream=true")
    if options is not None and options.include_obfuscation:
        raise bad_request(
            "stream_options.include_obfuscation", "include_obfuscation: only false is supported"
        )
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise bad_request(
            "stream_options.continuous_usage_stats", "continuous_usage_stats: needs include_usage=true"
        )
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise bad_request("allowed_token_ids", "allowed_token_ids=[]: at least one token id")
    if request.stream and request.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs", "prompt_logprobs: only with stream=false")
    if request.length_penalty is not None and not request.use_beam_search:
        raise bad_request("length_penalty", "length_penalty: only with use_beam_search=true")


def split_prompts(prompt: str | list[Any], n: int) -> list[str | list[int]]:
    """One entry per prompt: OpenAI's ``prompt`` is a text, a list of texts, token ids, or a list of those.

    Each will have ``n`` sequences.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_request("prompt", "prompt=[]: at least one prompt")
    kinds = {type(part) for part in prompt}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise bad_request("prompt", f"prompt: texts, token ids or lists of token ids, not a mix ({names})")
    if kinds == {int}:
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request("prompt", f"prompt: {len(prompt)} prompts, at most {MAX_PROMPTS}")
    if len(prompt) * n > MAX_SEQUENCES:
        raise bad_request(
            "n", f"n={n}: {len(prompt)} prompts with n sequences each, at most {MAX_SEQUENCES} in all"
        )
    return list(prompt)
