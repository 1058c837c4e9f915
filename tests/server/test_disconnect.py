"""A client that goes away ends its work at once, whatever state it is in, streamed or not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, web
from aiohttp.test_utils import TestServer

from engine.server.state import STATE
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import until

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def _send(server: TestServer, path: str, body: dict[str, Any]) -> asyncio.StreamWriter:
    """Post ``body`` over a bare socket and leave the connection open."""
    raw = json.dumps(body).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + raw)
    await writer.drain()
    return writer


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stall_after", [0, 3], ids=["waiting", "decoding"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}),
        ("/v1/chat/completions", CHAT),
    ],
    ids=["one", "many", "chat"],
)
async def test_abort(
    server: TestServer,
    engine: FakeEngine,
    path: str,
    body: dict[str, Any],
    stream: bool,
    stall_after: int,
    how: str,
) -> None:
    engine.stall_after = stall_after
    writer = await _send(server, path, {**body, "stream": stream})
    expected = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    await until(lambda: len(engine.stalled) == expected)
    if how == "reset":
        writer.transport.abort()
    else:
        writer.close()
    await until(lambda: not engine.active)
    assert len(engine.aborted) == expected
    inflight = server.app[STATE].inflight
    await until(lambda: inflight.requests == 0)


async def test_others_go_on(server: TestServer, engine: FakeEngine) -> None:
    engine.stall_after = 2
    leaving = await _send(server, "/v1/completions", {"prompt": "leaving", "stream": True})
    staying = asyncio.create_task(_complete(server, "staying"))
    await until(lambda: len(engine.stalled) == 2)
    leaving.close()
    await until(lambda: len(engine.active) == 1)
    engine.released.set()
    assert engine.reply in await staying


async def test_a_cut_body_reaches_nobody(server: TestServer, engine: FakeEngine) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"prompt"'
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert engine.reply in await _complete(server, "hi")
    assert [submitted.prompt for submitted in engine.submitted] == ["hi"]


async def test_an_answered_client_may_close(server: TestServer, engine: FakeEngine) -> None:
    await _complete(server, "hi")
    assert engine.aborted == []


async def _complete(server: TestServer, prompt: str) -> str:
    raw = json.dumps({"prompt": prompt}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)
    )
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer.decode()


@pytest.mark.parametrize("fails", [False, True])
async def test_gone_just_before_the_end_is_no_error_of_ours(
    server: TestServer,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: bool,
) -> None:
    """The connection breaks when the last event is out, or when the error event would go out."""
    engine.fail_request = "no luck" if fails else None
    broken = web.StreamResponse.write if fails else web.StreamResponse.write_eof
    ended = asyncio.Event()

    async def gone(self: web.StreamResponse, data: bytes = b"") -> None:
        if self.content_type != "text/event-stream" or (fails and b'"error"' not in data):
            return await broken(self, data)
        ended.set()
        raise ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.StreamResponse, broken.__name__, gone)
    writer = await _send(server, "/v1/completions", {"prompt": "hi", "stream": True})
    await asyncio.wait_for(ended.wait(), 10)
    await until(lambda: server.app[STATE].inflight.requests == 0)
    writer.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
