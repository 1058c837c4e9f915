"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.messages import FinishReason
from engine.server.collect import Answer, collect
from engine.server.generation import GenerationRequest, generate
from engine.server.logprobs import CompletionLogprobs, prompt_logprobs
from engine.server.params import completion_params, scores_only, split_prompts
from engine.server.parsing import read_struct
from engine.server.prompts import encode_prompts, prompt_text
from engine.server.protocol import CompletionRequest
from engine.server.request_id import request_id_of
from engine.server.responses import json_response, response_head
from engine.server.sse import ChunkEncoder, stream_events
from engine.server.state import STATE, ServerState
from engine.server.usage import Usage

_encode = msgspec.json.Encoder().encode


async def create_completion(request: web.Request) -> web.StreamResponse:
    state = request.app[STATE]
    body = await read_struct(request, CompletionRequest)
    state.check_model(body.model)
    state.check_priority(body.priority)
    params = completion_params(body)
    prompts = await encode_prompts(
        state.engine, split_prompts(body.prompt, body.n or 1), body.add_special_tokens
    )
    request_id = request_id_of(request)
    generation = GenerationRequest(
        request_id,
        prompts,
        params,
        priority=body.priority,
        cache_salt=body.cache_salt,
        field_names={"beam_width": "n"},
    )
    head = response_head(f"cmpl-{request_id}", "text_completion", state.model_name, stream=body.stream)
    shape = _Shape(state, body)
    if body.stream:
        return await stream_events(request, generate(state, generation), CompletionStream(shape, head))
    return json_response(_whole(shape, head, await collect(state, generation)))


class _Shape:
    """How this request wants its choices to look."""

    def __init__(self, state: ServerState, body: CompletionRequest) -> None:
        self.body = body
        self.tokenizer = state.engine.tokenizer
        self.n = body.n or 1
        self.scores_only = scores_only(body)

    def choice_index(self, prompt_index: int, completion: CompletionOutput) -> int:
        return prompt_index * self.n + completion.index

    def logprobs(self) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        return CompletionLogprobs(
            self.body.logprobs,
            self.body.return_tokens_as_token_ids,
            lambda token_id: self.tokenizer.decode([token_id], skip_special_tokens=False),
        )

    def trim(self, completion: CompletionOutput) -> CompletionOutput:
        """Without the token that had to be generated although ``max_tokens`` was 0."""
        if not self.scores_only:
            return completion
        return CompletionOutput(
            index=completion.index,
            text="",
            token_ids=[],
            logprobs=None if completion.logprobs is None else [],
            finish_reason=completion.finish_reason and FinishReason.LENGTH,
        )


def _whole(shape: _Shape, head: dict[str, Any], answers: list[Answer]) -> dict[str, Any]:
    usage = Usage()
    choices = []
    for prompt_index, answer in enumerate(answers):
        completions = [shape.trim(completion) for completion in answer.completions]
        choices += [_choice(shape, prompt_index, answer, completion) for completion in completions]
        usage.prompt_tokens += answer.usage.prompt_tokens
        usage.cached_tokens += answer.usage.cached_tokens
        usage.completion_tokens += sum(len(completion.token_ids) for completion in completions)
    return {**head, "choices": choices, "usage": usage.as_dict()}


def _choice(shape: _Shape, prompt_index: int, answer: Answer, completion: CompletionOutput) -> dict[str, Any]:
    body = shape.body
    text = completion.text
    token_ids = completion.token_ids
    positions: list[Any] = list(completion.logprobs or [])
    if body.echo:
        text = prompt_text(shape.tokenizer, answer.prompt, answer.prompt_token_ids) + text
        token_ids = [*answer.prompt_token_ids, *token_ids]
        positions = [*(answer.prompt_logprobs or []), *positions]
    logprobs = shape.logprobs()
    choice: dict[str, Any] = {
        "index": shape.choice_index(prompt_index, completion),
        "text": text,
        "logprobs": logprobs.format(positions, token_ids) if logprobs else None,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if body.prompt_logprobs is not None and answer.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
    if body.return_token_ids:
        choice["token_ids"] = completion.token_ids
        choice["prompt_token_ids"] = answer.prompt_token_ids
    return choice


class CompletionStream:
    """Chunks as OpenAI sends them: text, then one with ``finish_reason`` and no text. With ``echo`` the
    prompt comes first.

    What makes no event of its own: see :class:`engine.server.chat.ChatStream`.
    """

    def __init__(self, shape: _Shape, head: dict[str, Any]) -> None:
        options = shape.body.stream_options
        self.encoder = ChunkEncoder(
            head,
            include_usage=options is not None and options.include_usage,
            continuous_usage=options is not None and options.continuous_usage_stats,
        )
        self._shape = shape
        self._body = shape.body
        self._logprobs: dict[int, CompletionLogprobs | None] = {}
        self._prompt_logprobs: dict[int, list[list[Logprob] | None]] = {}
        """Per prompt; they come once, with the first of its ``n`` sequences."""

    def events(self, prompt_index: int, output: RequestOutput) -> bytes:
        parts: list[bytes] = []
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs
        for full in output.outputs:
            completion = self._shape.trim(full)
            self.encoder.usage.completion_tokens -= len(full.token_ids) - len(completion.token_ids)
            index = self._shape.choice_index(prompt_index, completion)
            prompt_ids = b""
            if index not in self._logprobs:
                self._logprobs[index] = self._shape.logprobs()
                if self._body.return_token_ids:
                    prompt_ids = b',"prompt_token_ids":' + _encode(output.prompt_token_ids)
                if self._body.echo:
                    scores = self._prompt_logprobs.get(prompt_index)
                    parts.append(self._echo(index, output, scores, prompt_ids))
                    prompt_ids = b""
            parts.append(self._text(index, completion, prompt_ids))
            if completion.finish_reason is not None:
                parts.append(self._closing(index, completion))
        return b"".join(parts)

    def _echo(
        self, index: int, output: RequestOutput, scores: list[list[Logprob] | None] | None, prompt_ids: bytes
    ) -> bytes:
        text = prompt_text(self._shape.tokenizer, output.prompt, output.prompt_token_ids)
        logprobs = self._logprobs[index]
        shown = None
        if logprobs and scores is not None:
            shown = logprobs.format(scores, output.prompt_token_ids)
        tokens = b',"token_ids":[]' if self._body.return_token_ids else b""
        return self._event(index, text, shown, prompt_ids + tokens)

    def _text(self, index: int, completion: CompletionOutput, prompt_ids: bytes) -> bytes:
        wants_tokens = self._body.return_token_ids or self._body.logprobs is not None
        if not completion.text and not (wants_tokens and completion.token_ids):
            return b""
        logprobs = self._logprobs[index]
        shown = None
        if logprobs and completion.token_ids:
            shown = logprobs.format(completion.logprobs or [], completion.token_ids)
        tokens = b',"token_ids":' + _encode(completion.token_ids) if self._body.return_token_ids else b""
        return self._event(index, completion.text, shown, prompt_ids + tokens)

    def _event(self, index: int, text: str, logprobs: dict[str, Any] | None, extra: bytes) -> bytes:
        return self.encoder.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null%b}'
            % (index, _encode(text), _encode(logprobs), extra)
        )

    def _closing(self, index: int, completion: CompletionOutput) -> bytes:
        tokens = b',"token_ids":[]' if self._body.return_token_ids else b""
        return self.encoder.chunk(
            b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b,"stop_reason":%b%b}'
            % (index, _encode(completion.finish_reason), _encode(completion.stop_reason), tokens)
        )
