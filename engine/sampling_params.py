"""What a request may ask of the sampler. Names, defaults and meaning follow vLLM's ``SamplingParams``."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable, msgpack between processes. Checked by :func:`engine.frontend.validate.validate_params`.

    ``max_tokens=None`` means: all the room that the context leaves.
    ``seed=None`` is replaced by a fresh seed at the front end, so that the core always sees one: a sampled
    token depends only on (model, prompt, params, seed, position).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """``bad_words`` as token ids, filled in by the front end."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    """Empty: every token is allowed."""
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    """None: none; 0: the sampled token only; N: the N best and the sampled one; -1: the whole vocabulary."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    @property
    def greedy(self) -> bool:
        """vLLM treats temperatures below 1e-5 as greedy."""
        return self.temperature < 1e-5
