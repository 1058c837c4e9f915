"""Meeting the server: what is said while it does not answer."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import InvalidInputError
from workbench.benchspec import Deadlines
from workbench.load import ready
from workbench.load.wire import open_session


async def wait_for(url: str) -> tuple[list[str], str]:
    """What was said while it waited, and how it ended."""
    said: list[str] = []
    async with open_session({}, Deadlines()) as session:
        with pytest.raises(InvalidInputError) as caught:
            await ready.server_facts(session, url, None, 0.4, said.append)
    assert caught.value.field == "base-url"
    return said, str(caught.value)


async def test_nobody_listens(monkeypatch):
    monkeypatch.setattr(ready, "_QUIET_S", 0.0)
    said, end = await wait_for("http://127.0.0.1:9")
    assert said[0].startswith("waiting for http://127.0.0.1:9 (Connection refused), at most 0 s more")
    assert "--ready-check-timeout-sec" in said[0]
    assert end == ("base-url='http://127.0.0.1:9': a server that answers within 0.4 s (Connection refused)")


async def test_a_short_wait_is_not_worth_a_word():
    said, _ = await wait_for("http://127.0.0.1:9")
    assert said == []


async def test_a_port_that_takes_connections_and_says_nothing(monkeypatch):
    monkeypatch.setattr(ready, "_QUIET_S", 0.0)
    monkeypatch.setattr(ready, "_CALL", ready.aiohttp.ClientTimeout(total=0.1))
    server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(30), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    said, end = await wait_for(f"http://127.0.0.1:{port}")
    server.close()
    assert "it takes the connection and does not answer" in said[0]
    assert "it takes the connection and does not answer" in end
