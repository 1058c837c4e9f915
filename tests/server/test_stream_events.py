"""The bytes of a stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.server.fake_engine import FakeEngine

ASK = [{"role": "user", "content": "hi"}]


async def _events(response: aiohttp.ClientResponse) -> list[Any]:
    """Payloads in order; every event is exactly ``data: …`` and an empty line."""
    raw = await response.read()
    assert raw.endswith(b"\n\n")
    events = raw[:-2].split(b"\n\n")
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    payloads = [event[6:] for event in events]
    return [payload.decode() if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


async def test_completion_stream(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "ab"
    headers = {"X-Request-Id": "mine"}
    body = {"prompt": "hi", "stream": True}
    async with http.post("v1/completions", json=body, headers=headers) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Request-Id"] == "mine"
        events = await _events(response)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {chunk["id"] for chunk in chunks} == {"cmpl-mine"}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert {chunk["model"] for chunk in chunks} == {"fake"}
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "b", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": None},
    ]
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_event(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "ab"
    body = {"prompt": "hey", "stream": True, "stream_options": {"include_usage": True}}
    async with http.post("v1/completions", json=body) as response:
        events = await _events(response)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert [event["usage"] for event in events[:-2]] == [None] * 3


async def test_continuous_usage(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "abc"
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": ASK, "stream": True, "stream_options": options}
    async with http.post("v1/chat/completions", json=body) as response:
        events = await _events(response)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == [1, 1, 2, 3, 4, 4]  # role, a, b, c, end, usage


async def test_echo_stream(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "ab"
    body = {
        "prompt": "hi",
        "stream": True,
        "echo": True,
        "logprobs": 0,
        "return_token_ids": True,
        "max_tokens": 2,
    }
    async with http.post("v1/completions", json=body) as response:
        choices = [event["choices"][0] for event in (await _events(response))[:-1]]
    assert [choice["text"] for choice in choices] == ["hi", "a", "b", ""]
    assert [choice["token_ids"] for choice in choices] == [[], [97], [98], []]
    assert choices[0]["prompt_token_ids"] == [104, 105]
    assert "prompt_token_ids" not in choices[1]
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choices[1]["logprobs"]["text_offset"] == [2]
    assert choices[2]["logprobs"]["top_logprobs"] == [{"b": -0.5}]
    assert choices[3]["finish_reason"] == "length"


async def test_scoring_stream(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    body = {
        "prompt": "hi",
        "stream": True,
        "echo": True,
        "max_tokens": 0,
        "stream_options": {"include_usage": True},
    }
    async with http.post("v1/completions", json=body) as response:
        events = await _events(response)
    assert [event["choices"][0]["text"] for event in events[:-2]] == ["hi", ""]
    assert events[-2]["usage"]["completion_tokens"] == 0


async def test_interleaved_choices(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "abc"
    body = {"prompt": ["x", "y"], "n": 2, "stream": True}
    async with http.post("v1/completions", json=body) as response:
        chunks = (await _events(response))[:-1]
    texts = dict.fromkeys(range(4), "")
    reasons: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == dict.fromkeys(range(4), "abc")
    assert reasons == dict.fromkeys(range(4), "stop")


async def test_chat_with_n_opens_each_choice_once(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.reply = "a"
    async with http.post("v1/chat/completions", json={"messages": ASK, "n": 2, "stream": True}) as response:
        chunks = (await _events(response))[:-1]
    deltas = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks]
    role = {"role": "assistant", "content": ""}
    assert deltas == [(0, role), (0, {"content": "a"}), (1, role), (1, {"content": "a"}), (0, {}), (1, {})]


async def test_error_event_ends_the_stream_without_done(
    http: aiohttp.ClientSession, engine: FakeEngine
) -> None:
    engine.stall_after = 2
    async with http.post("v1/completions", json={"prompt": "hi", "stream": True}) as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
        engine.die("power cut")
        rest = await asyncio.wait_for(_events(response), 10)
    assert rest[-1]["error"] == {
        "message": "the engine died: power cut",
        "type": "server_error",
        "param": None,
        "code": "engine_dead",
    }


async def test_one_event_per_write(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    """An event is not torn over chunks of the HTTP body, nor held for the next one."""
    engine.reply = "abc"
    async with http.post("v1/completions", json={"prompt": "hi", "stream": True}) as response:
        async for chunk, _ in response.content.iter_chunks():
            assert chunk.endswith(b"\n\n")
