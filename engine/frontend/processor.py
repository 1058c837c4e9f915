"""From what a caller gives (text, token ids, messages; parameters) to what the core takes:
:class:`EngineCoreRequest`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import msgspec

from engine.clock import Clock, MonotonicClock
from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.executor.info import ExecutorInfo
from engine.frontend.detokenizer import TokenBytes
from engine.frontend.validate import (
    RequestBounds,
    resolve_max_tokens,
    validate_params,
    validate_prompt,
    validate_request_fields,
    validate_text_length,
)
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class FrontEndTokenizer(TokenBytes, Protocol):
    """What the front end needs of :class:`engine.frontend.tokenizer.Tokenizer`."""

    @property
    def longest_token(self) -> int:
        """Characters of a text that one token stands for, at most."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(self, messages: Sequence[Message], **options: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """A checked request and the ``n`` sequences that the core generates for it."""

    external_id: str
    prompt: str | None
    """None when the prompt came as token ids."""
    prompt_token_ids: list[int]
    params: SamplingParams
    children: tuple[EngineCoreRequest, ...]


class InputProcessor:
    """Validates and tokenises. Cheap to share, holds no request.

    - **Ids.** Every sequence gets an id that is never used again, ``<external id>#<counter>`` with
      ``_<index>`` behind it for ``n > 1``; so a user may reuse an id at once, whatever became of its
      first use.
    - **Seeds.** A request without a seed gets one from (``config.seed``, counter): a run with the same
      requests in the same order can be repeated, and no two requests share their noise. Child i of ``n``
      gets seed + i, as in vLLM.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ExecutorInfo,
        tokenizer: FrontEndTokenizer,
        clock: Clock | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.bounds = RequestBounds.of(
            config,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            num_kv_blocks=info.num_kv_blocks,
            block_size=info.block_size,
        )
        self._base_seed = config.seed
        self.eos_token_ids = list(info.eos_token_ids)
        self._clock = clock or MonotonicClock()
        self._next_id: Callable[[], int] = itertools.count().__next__

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        limit_logprobs: bool = True,
    ) -> ProcessedRequest:
        """Check everything, then build the core's requests. Safe to call from a worker thread.

        Args:
            limit_logprobs: off for beam search, which needs more logprobs than users may ask for.

        Raises:
            InvalidInputError: field, value, what is allowed; nothing has changed then.
        """
        arrival_ns = self._clock.now_ns()
        validate_request_fields(request_id, priority, cache_salt)
        bounds = self.bounds if limit_logprobs else replace(self.bounds, max_logprobs=-1)
        params = validate_params(params, bounds)
        token_ids = self.tokenize(prompt)
        validate_prompt(token_ids, self.bounds)
        params = resolve_max_tokens(params, len(token_ids), self.bounds)
        params = self._with_bad_words(params)
        number = self._next_id()
        seed = self._fresh_seed(number) if params.seed is None else params.seed
        params = msgspec.structs.replace(params, seed=seed)
        submitted_ns = self._clock.now_ns()
        children = tuple(
            EngineCoreRequest(
                request_id=f"{request_id}#{number}" + (f"_{index}" if params.n > 1 else ""),
                external_id=request_id,
                prompt_token_ids=token_ids,
                params=_child_params(params, index),
                eos_token_ids=self.eos_token_ids,
                arrival_ns=arrival_ns,
                priority=priority,
                cache_salt=cache_salt,
                submitted_ns=submitted_ns,
            )
            for index in range(params.n)
        )
        text = prompt if isinstance(prompt, str) else None
        return ProcessedRequest(request_id, text, token_ids, params, children)

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of ``prompt``; a text gets the tokenizer's own special tokens (BOS where the model
        wants one).

        Raises:
            InvalidInputError: not a text nor a list, an empty text (even where BOS would be added), lone
                surrogates, or far too long.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidInputError("prompt", prompt, "at least one token")
            _check_unicode("prompt", prompt)
            validate_text_length(prompt, self.tokenizer.longest_token, self.bounds)
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise InvalidInputError("prompt", prompt, "a text or a list of token ids")
        return list(cast(Sequence[int], prompt))

    def render_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Token ids of a conversation under the model's chat template, which brings its own special tokens.

        ``options`` go to the template (``add_generation_prompt`` is on unless they say otherwise).

        Raises:
            InvalidInputError: no messages, or the model has no template, or the template refuses them.
        """
        if not messages:
            raise InvalidInputError("messages", messages, "at least one message")
        text = self.tokenizer.apply_chat_template(messages, **options)
        _check_unicode("messages", text)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        """Add each bad word's tokens, as it stands at a text's start and behind a space."""
        if not params.bad_words:
            return params
        words = dict.fromkeys(params.bad_words_token_ids)
        for word in params.bad_words:
            _check_unicode("bad_words", word)
            bare = word.lstrip() or word
            for variant in (bare, f" {bare}"):
                ids = tuple(self.tokenizer.encode(variant, add_special_tokens=False))
                if not ids:
                    raise InvalidInputError("bad_words", word, "words that give at least one token")
                words.setdefault(ids)
        return msgspec.structs.replace(params, bad_words_token_ids=tuple(words))

    def _fresh_seed(self, number: int) -> int:
        digest = hashlib.blake2b(f"{self._base_seed}:{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2  # room for seed + index


def _child_params(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of child ``index``: its own seed (modulo int64); only the first scores the prompt they
    all share.
    """
    if params.n == 1:
        return params
    seed = ((params.seed or 0) + index + 2**63) % 2**64 - 2**63
    prompt_logprobs = params.prompt_logprobs if index == 0 else None
    return msgspec.structs.replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(field, text, "valid Unicode text (no lone surrogates)") from None
