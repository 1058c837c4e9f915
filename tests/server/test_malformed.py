"""Bad requests: each is a 4xx in one line that names the parameter, and never reaches the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from engine.server import parsing
from tests.server.fake_engine import MAX_MODEL_LEN, FakeEngine

OK_CHAT = [{"role": "user", "content": "hi"}]

COMPLETIONS: list[tuple[str, dict[str, Any], str]] = [
    ("prompt missing", {"prompt": ...}, "prompt"),
    ("prompt null", {"prompt": None}, "prompt"),
    ("prompt a number", {"prompt": 7}, "prompt"),
    ("prompt an empty list", {"prompt": []}, "prompt"),
    ("prompt empty", {"prompt": ""}, "prompt"),
    ("prompt an empty list of ids", {"prompt": [[]]}, "prompt"),
    ("prompt mixed", {"prompt": ["a", 1]}, "prompt"),
    ("prompt with a bool", {"prompt": [True]}, "prompt[0]"),
    ("token id negative", {"prompt": [-1]}, "prompt[0]"),
    ("token id outside the vocabulary", {"prompt": [257]}, "prompt"),
    ("token id huge", {"prompt": [2**70]}, "prompt[0]"),
    ("prompt too long", {"prompt": [1] * MAX_MODEL_LEN}, "prompt"),
    ("too many prompts", {"prompt": ["a"] * 2049}, "prompt"),
    ("too many sequences", {"prompt": ["a"] * 100, "n": 41, "temperature": 1}, "n"),
    ("prompt far too long to be tokenised", {"prompt": "xyz " * 40_000}, "prompt"),
    (
        "prompt too long without special tokens",
        {"prompt": "x" * 160_000, "add_special_tokens": False},
        "prompt",
    ),
    ("token id a fraction", {"prompt": [1.5]}, "prompt[0]"),
    ("prompts nested too deep", {"prompt": [[[1]]]}, "prompt[0][0]"),
    ("a bad word that is a number", {"bad_words": [7]}, "bad_words[0]"),
    ("too many stop strings", {"stop": [str(i) for i in range(65)]}, "stop"),
    ("a stop string too long", {"stop": "x" * 1025}, "stop"),
    ("too many bad words", {"bad_words": [str(i) for i in range(1025)]}, "bad_words"),
    ("top_p a list", {"top_p": [0.5]}, "top_p"),
    ("temperature as text", {"temperature": "1"}, "temperature"),
    ("a huge unknown field", {"x" * 5000: 1}, "x" * 100),
    ("seed a fraction", {"seed": 1.5}, "seed"),
    ("model a list", {"model": ["x"]}, "model"),
    ("cache_salt a number", {"cache_salt": 5}, "cache_salt"),
    ("one bad prompt of two", {"prompt": [[1], [999]]}, "prompt"),
    ("model a number", {"model": 3}, "model"),
    ("temperature a text", {"temperature": "hot"}, "temperature"),
    ("temperature negative", {"temperature": -0.1}, "temperature"),
    ("temperature too high", {"temperature": 2.1}, "temperature"),
    ("top_p zero", {"top_p": 0}, "top_p"),
    ("top_p above one", {"top_p": 1.1}, "top_p"),
    ("top_k below -1", {"top_k": -2}, "top_k"),
    ("top_k a fraction", {"top_k": 1.5}, "top_k"),
    ("top_k beyond int64", {"top_k": 2**64}, "top_k"),
    ("min_p above one", {"min_p": 2}, "min_p"),
    ("presence_penalty", {"presence_penalty": 3}, "presence_penalty"),
    ("frequency_penalty", {"frequency_penalty": -3}, "frequency_penalty"),
    ("repetition_penalty zero", {"repetition_penalty": 0}, "repetition_penalty"),
    ("n zero", {"n": 0}, "n"),
    ("n huge", {"n": 10**6, "temperature": 1}, "n"),
    ("n with greedy", {"n": 2, "temperature": 0}, "n"),
    ("n a bool", {"n": True}, "n"),
    ("max_tokens zero", {"max_tokens": 0}, "max_tokens"),
    ("max_tokens negative", {"max_tokens": -5}, "max_tokens"),
    ("max_tokens a fraction", {"max_tokens": 1.5}, "max_tokens"),
    ("max_tokens beyond the context", {"max_tokens": MAX_MODEL_LEN}, "max_tokens"),
    ("min_tokens above max_tokens", {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ("seed a text", {"seed": "x"}, "seed"),
    ("seed beyond int64", {"seed": 2**63}, "seed"),
    ("stop a number", {"stop": 1}, "stop"),
    ("stop with a number", {"stop": ["a", 1]}, "stop[1]"),
    ("stop empty", {"stop": ""}, "stop"),
    ("stop_token_ids outside the vocabulary", {"stop_token_ids": [300]}, "stop_token_ids"),
    ("stop_token_ids not a list", {"stop_token_ids": 3}, "stop_token_ids"),
    ("allowed_token_ids empty", {"allowed_token_ids": []}, "allowed_token_ids"),
    ("allowed_token_ids outside", {"allowed_token_ids": [300]}, "allowed_token_ids"),
    ("bad_words with an empty one", {"bad_words": [""]}, "bad_words"),
    ("logit_bias of a word", {"logit_bias": {"word": 1}}, "logit_bias"),
    ("logit_bias outside the vocabulary", {"logit_bias": {"300": 1}}, "logit_bias"),
    ("logit_bias a text", {"logit_bias": {"3": "x"}}, "logit_bias[...]"),
    ("logprobs too many", {"logprobs": 21}, "logprobs"),
    ("logprobs negative", {"logprobs": -1}, "logprobs"),
    ("logprobs a bool", {"logprobs": True}, "logprobs"),
    ("prompt_logprobs in a stream", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ("prompt_logprobs against echo", {"prompt_logprobs": 1, "echo": True, "logprobs": 2}, "prompt_logprobs"),
    ("stream a text", {"stream": "yes"}, "stream"),
    ("stream_options without stream", {"stream_options": {"include_usage": True}}, "stream_options"),
    (
        "stream_options with an unknown field",
        {"stream": True, "stream_options": {"x": 1}},
        "stream_options.x",
    ),
    (
        "continuous usage without usage",
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ("unknown field", {"temprature": 1}, "temprature"),
    ("suffix", {"suffix": "end"}, "suffix"),
    ("best_of", {"best_of": 3}, "best_of"),
    ("response_format", {"response_format": {"type": "json_object"}}, "response_format"),
    ("guided_json", {"guided_json": {}}, "guided_json"),
    ("logits_processors", {"logits_processors": ["x"]}, "logits_processors"),
    ("priority under fcfs", {"priority": 1}, "priority"),
    ("priority a text", {"priority": "high"}, "priority"),
    ("n beyond all memory", {"n": 2**62}, "n"),
    ("beam search with top_p", {"use_beam_search": True, "top_p": 0.5}, "top_p"),
    ("beam search with stop", {"use_beam_search": True, "stop": "x"}, "stop"),
    ("beam search with a priority", {"use_beam_search": True, "priority": 1}, "priority"),
    ("beam search with logprobs", {"use_beam_search": True, "logprobs": 2}, "logprobs"),
    ("beam search with temperature", {"use_beam_search": True, "temperature": 0.5}, "temperature"),
    ("length_penalty without beam search", {"length_penalty": 1.0}, "length_penalty"),
    ("messages to completions", {"messages": OK_CHAT}, "messages"),
]

CHATS: list[tuple[str, dict[str, Any], str]] = [
    ("messages missing", {"messages": ...}, "messages"),
    ("messages empty", {"messages": []}, "messages"),
    ("messages a text", {"messages": "hi"}, "messages"),
    ("message a text", {"messages": ["hi"]}, "messages[0]"),
    ("role missing", {"messages": [{"content": "hi"}]}, "messages[0].role"),
    ("role unknown", {"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
    ("role tool", {"messages": [*OK_CHAT, {"role": "tool", "content": "x"}]}, "messages[1].role"),
    ("content missing", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("content null", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("content a number", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("content without parts", {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (
        "an image",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        "a text part without text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    ("a part that is a text", {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ("unknown message field", {"messages": [{**OK_CHAT[0], "mood": 1}]}, "messages[0].mood"),
    (
        "tool calls of the assistant",
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls",
    ),
    ("template's refusal", {"messages": [{"role": "user", "content": "boom"}]}, "messages"),
    (
        "prompt too long",
        {"messages": [{"role": "user", "content": "x" * MAX_MODEL_LEN}]},
        "messages",
    ),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("tool_choice", {"tool_choice": "required"}, "tool_choice"),
    ("functions", {"functions": [{"name": "f"}]}, "functions"),
    ("audio", {"modalities": ["text", "audio"]}, "modalities"),
    ("json schema", {"response_format": {"type": "json_schema"}}, "response_format"),
    ("reasoning_effort", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("chat_template", {"chat_template": "{{ x }}"}, "chat_template"),
    ("reserved template argument", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ("top_logprobs without logprobs", {"top_logprobs": 2}, "top_logprobs"),
    ("top_logprobs too many", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("top_logprobs negative", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("logprobs a number", {"logprobs": 2}, "logprobs"),
    ("two different limits", {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ("max_completion_tokens zero", {"max_completion_tokens": 0}, "max_tokens"),
    ("echo", {"echo": True}, "echo"),
    ("continue without an open end", {"continue_final_message": True}, "continue_final_message"),
    ("store", {"store": True}, "store"),
    ("prompt to chat", {"prompt": "x"}, "prompt"),
    (
        "a conversation far too long to be tokenised",
        {"messages": [{"role": "user", "content": "x" * 10_000}] * 17},
        "messages",
    ),
    ("name a number", {"messages": [{**OK_CHAT[0], "name": 5}]}, "messages[0].name"),
    (
        "extra field of a part",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]},
        "messages[0].content[0].y",
    ),
    ("role null", {"messages": [{"role": None, "content": "x"}]}, "messages[0].role"),
    ("chat_template_kwargs a list", {"chat_template_kwargs": []}, "chat_template_kwargs"),
]


def _body(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**base, **change}.items() if value is not ...}


async def _check(response: aiohttp.ClientResponse, status: int, param: str | None) -> dict[str, Any]:
    answer = await response.json()
    assert response.status == status, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    return error


@pytest.mark.parametrize(
    ("change", "param"), [row[1:] for row in COMPLETIONS], ids=[r[0] for r in COMPLETIONS]
)
async def test_completion(
    http: aiohttp.ClientSession, engine: FakeEngine, change: dict[str, Any], param: str
) -> None:
    body = _body({"prompt": "hi"}, change)
    async with http.post("v1/completions", json=body) as response:
        error = await _check(response, 400, param)
    assert error["type"] == "invalid_request_error"
    assert not engine.active


@pytest.mark.parametrize(("change", "param"), [row[1:] for row in CHATS], ids=[row[0] for row in CHATS])
async def test_chat(
    http: aiohttp.ClientSession, engine: FakeEngine, change: dict[str, Any], param: str
) -> None:
    body = _body({"messages": OK_CHAT}, change)
    async with http.post("v1/chat/completions", json=body) as response:
        await _check(response, 400, param)
    assert not engine.submitted


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"prompt": "hi"',
        b'{"prompt": NaN}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b"[]",
        b'"hi"',
        b"null",
        b"[" * 100_000,
        b'{"prompt": "hi", "temperature": 1e999}',
        b"prompt=hi",
    ],
    ids=lambda raw: raw[:30].decode("latin-1"),
)
async def test_not_json(http: aiohttp.ClientSession, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post("v1/completions", data=raw, headers=headers) as response:
        error = await _check(response, 400, None)
    assert error["code"] == "invalid_json"


@pytest.mark.parametrize("encoding", ["deflate", "gzip", "br", "x" * 500, "gzip, gzip"])
async def test_compressed_bodies(http: aiohttp.ClientSession, engine: FakeEngine, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http.post("v1/completions", data=b"abcdef", headers=headers) as response:
        error = await _check(response, 415, None)
    assert error["code"] == "unsupported_encoding"
    assert engine.submitted == []


@pytest.mark.parametrize("name", ["self", "", "a b", "range", "bos_token"])
async def test_template_variables_of_any_name(http: aiohttp.ClientSession, name: str) -> None:
    body = {"messages": OK_CHAT, "chat_template_kwargs": {name: [1]}}
    async with http.post("v1/chat/completions", json=body) as response:
        assert response.status == 200


async def test_stream_refused_as_plain_http(http: aiohttp.ClientSession) -> None:
    """A refusal comes before the stream begins, so it still has its status."""
    async with http.post("v1/completions", json={"prompt": "", "stream": True}) as response:
        await _check(response, 400, "prompt")


@pytest.mark.parametrize("path", ["v1/completions", "v1/chat/completions", "tokenize", "detokenize"])
async def test_unknown_model(http: aiohttp.ClientSession, path: str) -> None:
    fields = {"prompt": "a"} if path in ("v1/completions", "tokenize") else {"messages": OK_CHAT}
    body = {"tokens": [1]} if path == "detokenize" else fields
    async with http.post(path, json={"model": "gpt-9", **body}) as response:
        error = await _check(response, 404, "model")
    assert error["code"] == "model_not_found"


async def test_body_that_never_ends(
    server: TestServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "BODY_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"prompt"'
    )
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert engine.submitted == []


async def test_wrong_content_type(http: aiohttp.ClientSession) -> None:
    body = json.dumps({"prompt": "hi"})
    async with http.post("v1/completions", data=body, headers={"Content-Type": "text/plain"}) as response:
        await _check(response, 415, None)


async def test_body_too_large(http: aiohttp.ClientSession) -> None:
    async with http.post("v1/completions", json={"prompt": "x" * 300_000}) as response:
        await _check(response, 413, None)


async def test_unknown_path_and_method(http: aiohttp.ClientSession) -> None:
    async with http.get("v1/embeddings") as response:
        await _check(response, 404, None)
    async with http.get("v1/completions") as response:
        await _check(response, 405, None)
        assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("request_id", ["", "x" * 257, "caf\u00e9"])
async def test_bad_request_id(http: aiohttp.ClientSession, request_id: str) -> None:
    headers = {"X-Request-Id": request_id}
    async with http.post("v1/completions", json={"prompt": "hi"}, headers=headers) as response:
        await _check(response, 400, "X-Request-Id")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": OK_CHAT}, "prompt"),
        ("tokenize", {"messages": OK_CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ("tokenize", {"prompt": 3}, "prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": "abc"}, "tokens"),
        ("detokenize", {"tokens": [257]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": [1], "x": 1}, "x"),
    ],
)
async def test_tokenizer_endpoints(
    http: aiohttp.ClientSession, path: str, body: dict[str, Any], param: str
) -> None:
    async with http.post(path, json=body) as response:
        await _check(response, 400, param)


async def test_a_refused_request_harms_no_other(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    for change in ({"n": 0}, {"prompt": [999]}, {"temprature": 1}):
        async with http.post("v1/completions", json=_body({"prompt": "hi"}, change)) as response:
            assert response.status == 400
    async with http.post("v1/completions", json={"prompt": "hi", "max_tokens": 100}) as response:
        answer = await response.json()
    assert answer["choices"][0]["text"] == engine.reply
