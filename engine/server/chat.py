"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from engine.frontend.outputs import CompletionOutput, RequestOutput
from engine.server.collect import Answer, collect
from engine.server.generation import GenerationRequest, generate
from engine.server.logprobs import chat_logprobs, prompt_logprobs
from engine.server.params import chat_params
from engine.server.parsing import read_struct
from engine.server.prompts import render_chat
from engine.server.protocol import ChatCompletionRequest
from engine.server.request_id import request_id_of
from engine.server.responses import json_response, response_head
from engine.server.sse import ChunkEncoder, stream_events
from engine.server.state import STATE

_encode = msgspec.json.Encoder().encode


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    state = request.app[STATE]
    body = await read_struct(request, ChatCompletionRequest)
    state.check_model(body.model)
    state.check_priority(body.priority)
    params = chat_params(body)
    prompt = await render_chat(state.engine.tokenizer, body, state.engine.bounds)
    request_id = request_id_of(request)
    generation = GenerationRequest(
        request_id,
        [prompt],
        params,
        priority=body.priority,
        cache_salt=body.cache_salt,
        field_names={"prompt": "messages", "logprobs": "top_logprobs", "beam_width": "n"},
    )
    head = response_head(f"chatcmpl-{request_id}", "chat.completion", state.model_name, stream=body.stream)
    if body.stream:
        return await stream_events(request, generate(state, generation), ChatStream(body, head))
    return json_response(_whole(body, head, (await collect(state, generation))[0]))


def _whole(body: ChatCompletionRequest, head: dict[str, Any], answer: Answer) -> dict[str, Any]:
    response = {
        **head,
        "choices": [_choice(body, completion) for completion in answer.completions],
        "usage": answer.usage.as_dict(),
    }
    if answer.prompt_logprobs is not None:
        response["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
    if body.return_token_ids:
        response["prompt_token_ids"] = answer.prompt_token_ids
    return response


def _choice(body: ChatCompletionRequest, completion: CompletionOutput) -> dict[str, Any]:
    choice = {
        "index": completion.index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": _logprobs(body, completion),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = completion.token_ids
    return choice


def _logprobs(body: ChatCompletionRequest, completion: CompletionOutput) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return chat_logprobs(completion.logprobs or [], body.top_logprobs or 0, body.return_tokens_as_token_ids)


class ChatStream:
    """Chunks as OpenAI sends them: the role alone, then content, then ``finish_reason`` with an empty delta.

    Tokens whose text is still held back (an unfinished character, a possible stop string) make no event of
    their own unless the client asked for token ids or logprobs: an event without news would count as a token
    to naive clients.
    """

    def __init__(self, body: ChatCompletionRequest, head: dict[str, Any]) -> None:
        options = body.stream_options
        self.encoder = ChunkEncoder(
            head,
            include_usage=options is not None and options.include_usage,
            continuous_usage=options is not None and options.continuous_usage_stats,
        )
        self._body = body
        self._started: set[int] = set()

    def events(self, prompt_index: int, output: RequestOutput) -> bytes:
        parts: list[bytes] = []
        for completion in output.outputs:
            if completion.index not in self._started:
                parts.append(self._opening(completion.index, output))
                self._started.add(completion.index)
            parts.append(self._content(completion))
            if completion.finish_reason is not None:
                parts.append(self._closing(completion))
        return b"".join(parts)

    def _opening(self, index: int, output: RequestOutput) -> bytes:
        extra = b""
        if self._body.return_token_ids and not self._started:
            extra = b',"prompt_token_ids":' + _encode(output.prompt_token_ids)
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            % index
        )
        return self.encoder.chunk(choice, extra)

    def _content(self, completion: CompletionOutput) -> bytes:
        wants_tokens = self._body.return_token_ids or self._body.logprobs
        if not completion.text and not (wants_tokens and completion.token_ids):
            return b""
        logprobs = _logprobs(self._body, completion) if completion.token_ids else None
        tokens = b',"token_ids":' + _encode(completion.token_ids) if self._body.return_token_ids else b""
        return self.encoder.chunk(
            b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null%b}'
            % (completion.index, _encode(completion.text), _encode(logprobs), tokens)
        )

    def _closing(self, completion: CompletionOutput) -> bytes:
        tokens = b',"token_ids":[]' if self._body.return_token_ids else b""
        return self.encoder.chunk(
            b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b%b}'
            % (completion.index, _encode(completion.finish_reason), _encode(completion.stop_reason), tokens)
        )
