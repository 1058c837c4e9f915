"""Every limit of a request, checked at the edge: what passes here can't hurt the engine or another request.

Ranges follow vLLM's ``SamplingParams``. Refusals are :class:`InvalidInputError`: field, value, what is
allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.sampling_params import SamplingParams

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
MAX_BAD_WORDS = 1024
MAX_LOGIT_BIAS = 100.0
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """What model, configuration and KV pool leave to one request.

    ``max_request_tokens`` bounds prompt plus output: the smaller of ``max_model_len`` and the KV pool;
    ``reason`` says which.
    """

    vocab_size: int
    max_request_tokens: int
    reason: str
    max_logprobs: int

    @classmethod
    def of(
        cls, config: EngineConfig, *, vocab_size: int, max_model_len: int, num_kv_blocks: int, block_size: int
    ) -> RequestBounds:
        """``num_kv_blocks`` counts the null block."""
        pool = (num_kv_blocks - 1) * block_size
        if max_model_len <= pool:
            return cls(vocab_size, max_model_len, f"max_model_len is {max_model_len}", config.max_logprobs)
        return cls(vocab_size, pool, f"the KV cache holds {pool} tokens", config.max_logprobs)

    @property
    def prompt_limit(self) -> str:
        """How long a prompt may be, in words."""
        return f"at most {self.max_request_tokens - 1} tokens, to leave one for the output ({self.reason})"


def validate_params(params: SamplingParams, bounds: RequestBounds) -> SamplingParams:
    """Check all that doesn't depend on the prompt; return the normal form.

    Normal form: lists without duplicates, ``logit_bias`` clamped to ±100, ``top_k=-1`` as 0, ``seed=-1``
    as None.

    Raises:
        InvalidInputError: the first thing that is out of range.
    """
    _check_numbers(params)
    _check_lengths(params)
    _check_logprobs("logprobs", params.logprobs, bounds)
    _check_logprobs("prompt_logprobs", params.prompt_logprobs, bounds)
    for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):
        if not isinstance(getattr(params, name), bool):
            raise InvalidInputError(name, getattr(params, name), "true or false")
    stop = _strings("stop", params.stop, MAX_STOP_STRINGS, MAX_STOP_LENGTH)
    if stop and not params.detokenize:
        raise InvalidInputError("stop", list(stop), "nothing when detokenize is off (stop strings need text)")
    return msgspec.structs.replace(
        params,
        top_k=max(params.top_k, 0),
        seed=None if params.seed == -1 else params.seed,
        stop=stop,
        stop_token_ids=_ids("stop_token_ids", params.stop_token_ids, bounds.vocab_size),
        allowed_token_ids=_ids("allowed_token_ids", params.allowed_token_ids, bounds.vocab_size),
        bad_words=_strings("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_STOP_LENGTH),
        bad_words_token_ids=tuple(
            _ids("bad_words_token_ids", word, bounds.vocab_size, unique=False)
            for word in dict.fromkeys(tuple(word) for word in params.bad_words_token_ids)
            if word or _refuse("bad_words_token_ids", word, "words of at least one token")
        ),
        logit_bias=_logit_bias(params.logit_bias, bounds.vocab_size),
    )


def validate_text_length(text: str, longest_token: int, bounds: RequestBounds, field: str = "prompt") -> None:
    """Refuse a text that is too long however well it tokenises, before seconds are spent on tokenising it.

    Raises:
        InvalidInputError: even tokens of ``longest_token`` characters would be too many.
    """
    if len(text) >= bounds.max_request_tokens * longest_token:
        raise InvalidInputError(field, f"{len(text)} characters", bounds.prompt_limit)


def validate_prompt(token_ids: Sequence[int], bounds: RequestBounds) -> None:
    """Check a tokenised prompt.

    Raises:
        InvalidInputError: empty, too long to leave room for one output token, or with an id outside the
            vocabulary.
    """
    if len(token_ids) == 0:
        raise InvalidInputError("prompt", "", "at least one token")
    if len(token_ids) >= bounds.max_request_tokens:
        raise InvalidInputError("prompt", f"{len(token_ids)} tokens", bounds.prompt_limit)
    _ids("prompt", token_ids, bounds.vocab_size, unique=False)


def resolve_max_tokens(
    params: SamplingParams, num_prompt_tokens: int, bounds: RequestBounds
) -> SamplingParams:
    """Replace ``max_tokens=None`` by the room that the prompt leaves; check both token limits against the
    room.

    Raises:
        InvalidInputError: ``max_tokens`` or ``min_tokens`` exceeds the room.
    """
    room = bounds.max_request_tokens - num_prompt_tokens
    why = f"{bounds.reason}, the prompt has {num_prompt_tokens}"
    if params.max_tokens is not None and params.max_tokens > room:
        raise InvalidInputError("max_tokens", params.max_tokens, f"at most {room} ({why})")
    if params.min_tokens > room:
        raise InvalidInputError("min_tokens", params.min_tokens, f"at most {room} ({why})")
    return params if params.max_tokens is not None else msgspec.structs.replace(params, max_tokens=room)


def validate_request_fields(request_id: str, priority: int, cache_salt: str | None) -> None:
    """Check what a request has beside prompt and sampling parameters."""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 512:
        raise InvalidInputError("request_id", request_id, "a text of 1 to 512 characters")
    _int("priority", priority, -_INT64, _INT64 - 1)
    if cache_salt is not None and not (isinstance(cache_salt, str) and 0 < len(cache_salt) <= 1024):
        raise InvalidInputError("cache_salt", cache_salt, "a text of 1 to 1024 characters")


def _check_numbers(params: SamplingParams) -> None:
    _int("n", params.n, 1, MAX_N)
    _number("temperature", params.temperature, 0.0, 2.0)
    _number("top_p", params.top_p, 0.0, 1.0, above_low=True)
    _number("min_p", params.min_p, 0.0, 1.0)
    _int("top_k", params.top_k, -1, _INT64 - 1)
    _number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _number("repetition_penalty", params.repetition_penalty, 0.0, math.inf, above_low=True)
    if params.seed is not None:
        _int("seed", params.seed, -_INT64, _INT64 - 1)
    if params.n > 1 and params.greedy:
        raise InvalidInputError("n", params.n, "1 when temperature is 0: greedy sequences would all be equal")


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        _int("max_tokens", params.max_tokens, 1, None)
    _int("min_tokens", params.min_tokens, 0, None)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidInputError("min_tokens", params.min_tokens, f"at most max_tokens ({params.max_tokens})")


def _check_logprobs(field: str, value: int | None, bounds: RequestBounds) -> None:
    if value is None:
        return
    if bounds.max_logprobs == -1:
        _int(field, value, -1, bounds.vocab_size)
    else:
        _int(field, value, 0, bounds.max_logprobs, hint=" (max_logprobs)")


def _number(field: str, value: object, low: float, high: float, *, above_low: bool = False) -> None:
    """A finite number in [low, high], or (low, high] when ``above_low``."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if numeric and math.isfinite(value) and low <= value <= high and not (above_low and value == low):  # type: ignore[arg-type,operator]
        return
    start = f"above {low:g}" if above_low else f"from {low:g}"
    raise InvalidInputError(field, value, f"a number {start}" + (f" to {high:g}" if high < math.inf else ""))


def _int(field: str, value: object, low: int, high: int | None, *, hint: str = "") -> None:
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= low
        and (high is None or value <= high)
    ):
        return
    top = "" if high is None or high >= _INT64 - 1 else f" to {high}{hint}"
    raise InvalidInputError(field, value, f"an integer from {low}{top}")


def _ids(field: str, ids: Iterable[int], vocab_size: int, *, unique: bool = True) -> tuple[int, ...]:
    """Token ids as a tuple, each checked: they become indices into the logits."""
    ids = tuple(ids)
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidInputError(field, token, f"token ids from 0 to {vocab_size - 1}")
    return tuple(dict.fromkeys(ids)) if unique else ids


def _strings(field: str, values: Sequence[str], max_count: int, max_length: int) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidInputError(field, values, "a list of texts")
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= max_length:
            raise InvalidInputError(field, value, f"texts of 1 to {max_length} characters")
    distinct = tuple(dict.fromkeys(values))
    if len(distinct) > max_count:
        raise InvalidInputError(field, f"{len(distinct)} texts", f"at most {max_count}")
    return distinct


def _logit_bias(bias: dict[int, float], vocab_size: int) -> dict[int, float]:
    _ids("logit_bias", bias, vocab_size)
    for value in bias.values():
        _number("logit_bias", value, -math.inf, math.inf)
    return {token: max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, float(value))) for token, value in bias.items()}


def _refuse(field: str, value: object, allowed: str) -> bool:
    raise InvalidInputError(field, value, allowed)
