"""A scripted stand-in for AsyncLLM: the same surface, every pause under the test's control, no model and no
process.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from engine.config import EngineConfig
from engine.errors import EngineDeadError, QueueFullError
from engine.frontend.beam_search import BeamSearchParams
from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.validate import RequestBounds, resolve_max_tokens, validate_params, validate_prompt
from engine.messages import EngineCoreOutputs, FinishReason, RequestTimings, SchedulerStats
from engine.sampling_params import SamplingParams

EOS = 256
MAX_MODEL_LEN = 4096
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'boom' %}{{ raise_exception('no booms') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """One token a byte (the id is the byte's value), and an end token."""
    alphabet = {byte: chr(byte) for byte in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    others = [byte for byte in range(256) if byte not in alphabet]
    alphabet |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    vocab = {alphabet[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<end>", special=True)])
    return Tokenizer(backend, {"eos_token": "<end>"}, chat_template)


@dataclass
class Submitted:
    """What the server asked for."""

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    priority: int
    cache_salt: str | None


@dataclass
class FakeEngine:
    """Answers every prompt with ``reply``, one byte a token, then the end token.

    ``stall_after``: hold every request after that many tokens (0: while it waits) until ``released`` is set.
    """

    config: EngineConfig = field(default_factory=lambda: EngineConfig.create(model="fake", max_num_seqs=4))
    reply: str = "Paris is nice."
    stall_after: int | None = None
    tokenizer: Tokenizer = field(default_factory=byte_tokenizer)
    num_cached_tokens: int = 0
    can_reset: bool = True
    released: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: list[Submitted] = field(default_factory=list)
    beam_searches: list[BeamSearchParams] = field(default_factory=list)
    active: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    """Requests that reached ``stall_after``."""
    aborted: list[str] = field(default_factory=list)
    stats: SchedulerStats | None = None
    dead_error: BaseException | None = None
    queue_full: bool = False
    step_listeners: list[Callable[[EngineCoreOutputs], None]] = field(default_factory=list)
    fail_request: str | None = None
    """Error of the request itself, reported instead of its second token."""
    max_model_len: int = MAX_MODEL_LEN

    @property
    def info(self) -> dict[str, Any]:
        return {"architecture": "Fake", "dtype": "float32", "num_kv_blocks": 64, "backend": "fake"}

    @property
    def bounds(self) -> RequestBounds:
        return RequestBounds(
            257, MAX_MODEL_LEN, f"max_model_len is {MAX_MODEL_LEN}", self.config.max_logprobs
        )

    @property
    def is_dead(self) -> bool:
        return self.dead_error is not None

    def die(self, why: str = "killed by the test") -> None:
        self.dead_error = EngineDeadError(why)
        self.released.set()

    async def reset_prefix_cache(self) -> bool:
        return self.can_reset

    def add_step_listener(self, listener: Callable[[EngineCoreOutputs], None]) -> None:
        self.step_listeners.append(listener)

    async def beam_search(
        self,
        prompt: str | list[int],
        params: BeamSearchParams,
        request_id: str,
        *,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        self.beam_searches.append(params)
        if self.dead_error is not None:
            raise self.dead_error
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        outputs = [
            CompletionOutput(index, f"beam {index}", [65 + index], finish_reason=FinishReason.LENGTH)
            for index in range(params.n or params.beam_width)
        ]
        return RequestOutput(request_id, None, ids, outputs, finished=True)

    async def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        self.released.set()

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        bounds = self.bounds
        params = validate_params(params, bounds)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        validate_prompt(ids, bounds)
        params = resolve_max_tokens(params, len(ids), bounds)
        if self.dead_error is not None:
            raise self.dead_error
        if self.queue_full:
            raise QueueFullError("max_waiting_requests=1: 1 requests are waiting, try again later")
        self.submitted.append(Submitted(request_id, prompt, params, priority, cache_salt))
        self.active.add(request_id)
        try:
            async for output in self._outputs(prompt, ids, params, request_id):
                yield output
            self.active.discard(request_id)
        finally:
            if request_id in self.active:
                self.active.discard(request_id)
                self.aborted.append(request_id)

    async def _outputs(
        self, prompt: str | list[int], ids: list[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        tokens = [*self.reply.encode(), EOS]
        limit = params.max_tokens or len(tokens)
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(params.n)]
        for position, token in enumerate(tokens[:limit]):
            if position == self.stall_after:
                self.stalled.add(request_id)
                await self.released.wait()
            await asyncio.sleep(0)
            if self.dead_error is not None:
                raise self.dead_error
            last = position + 1 == min(limit, len(tokens))
            reason = (FinishReason.STOP if token == EOS else FinishReason.LENGTH) if last else None
            yield RequestOutput(
                request_id=request_id,
                prompt=prompt if isinstance(prompt, str) else None,
                prompt_token_ids=ids,
                outputs=[
                    CompletionOutput(
                        index=index,
                        text=decoder.decode(b"" if token == EOS else bytes([token]), final=last),
                        token_ids=[token],
                        logprobs=None
                        if params.logprobs is None
                        else [self._candidates(token, params.logprobs)],
                        finish_reason=reason,
                        timings=_TIMINGS if last else None,
                    )
                    for index, decoder in enumerate(decoders)
                ],
                finished=last,
                num_cached_tokens=self.num_cached_tokens,
                prompt_logprobs=None if position else self._prompt_logprobs(ids, params.prompt_logprobs),
                error=self.fail_request if position == 1 else None,
            )

    def _prompt_logprobs(self, ids: list[int], top: int | None) -> list[list[Logprob] | None] | None:
        return None if top is None else [None, *(self._candidates(token, top) for token in ids[1:])]

    def _candidates(self, token: int, top: int) -> list[Logprob]:
        """The chosen token at -0.5, then the ``top`` best: token ids 65, 66 … at -1, -2 …; the last one at
        -inf.
        """
        best = [self._logprob(65 + k, -1.0 - k, k + 1) for k in range(top)]
        if len(best) > 2:
            best[-1] = self._logprob(65 + top - 1, float("-inf"), top)
        return [self._logprob(token, -0.5, 1), *best]

    def _logprob(self, token: int, logprob: float, rank: int) -> Logprob:
        return Logprob(
            token, logprob, rank, self.tokenizer.decode([token], False), self.tokenizer.token_bytes(token)
        )


_TIMINGS = RequestTimings(
    arrival_ns=0,
    queued_ns=1_000_000,
    scheduled_ns=3_000_000,
    first_token_ns=13_000_000,
    last_token_ns=33_000_000,
    num_preemptions=0,
)


def make_stats(**changes: int) -> SchedulerStats:
    """A snapshot with distinct values."""
    fields = {
        "num_running": 2,
        "num_waiting": 1,
        "kv_blocks_total": 64,
        "kv_blocks_used": 16,
        "num_preemptions": 3,
        "prefix_cache_queries": 100,
        "prefix_cache_hits": 40,
        "resumed_prefix_cache_queries": 7,
        "resumed_prefix_cache_hits": 5,
        "prompt_tokens_recomputed": 11,
        "num_steps": 13,
        "last_step_tokens": 17,
    }
    return SchedulerStats(**{**fields, **changes})
