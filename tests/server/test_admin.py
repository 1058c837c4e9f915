"""Health, configuration, tokenizer, keys, limits."""

from __future__ import annotations

import os

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from engine.config import EngineConfig
from engine.server.app import build_app
from engine.server.options import ServerOptions
from tests.server.fake_engine import FakeEngine


async def test_health(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async with http.get("health") as response:
        assert response.status == 200
    engine.die("gone")
    async with http.get("health") as response:
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "the engine died: gone"


async def test_server_info(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async with http.get("server_info") as response:
        info = await response.json()
    assert EngineConfig.create(**info["config"]) == engine.config
    assert info["resolved"] == engine.info
    assert info["pid"] == os.getpid()
    assert info["model"] == "fake"
    assert info["server"]["api_key_required"] is False
    assert info["clock"]["monotonic_ns"] > 0
    async with http.get("version") as response:
        assert await response.json() == {"version": info["version"]}


async def test_tokenize_and_back(http: aiohttp.ClientSession) -> None:
    async with http.post("tokenize", json={"prompt": "hé", "return_token_strs": True}) as response:
        answer = await response.json()
    assert answer["tokens"] == [104, 0xC3, 0xA9]
    assert answer["count"] == 3
    assert answer["max_model_len"] == 4096
    assert len(answer["token_strs"]) == 3
    async with http.post("detokenize", json={"tokens": answer["tokens"]}) as response:
        assert await response.json() == {"prompt": "hé"}
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    async with http.post("tokenize", json=chat) as response:
        assert (await response.json())["tokens"] == list(b"<user>hi\n")


async def test_a_long_text_is_tokenised_off_the_loop(http: aiohttp.ClientSession) -> None:
    async with http.post("tokenize", json={"prompt": "ab" * 15_000}) as response:
        assert (await response.json())["count"] == 30_000


async def test_reset_prefix_cache(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async with http.post("reset_prefix_cache") as response:
        assert response.status == 200
    engine.can_reset = False
    async with http.post("reset_prefix_cache") as response:
        assert response.status == 409


async def test_request_id_is_made_up_or_echoed(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async with http.post("v1/completions", json={"prompt": "hi"}) as response:
        made_up = response.headers["X-Request-Id"]
        assert (await response.json())["id"] == f"cmpl-{made_up}"
    headers = {"X-Request-Id": "trace-7"}
    async with http.post("v1/completions", json={"prompt": "hi"}, headers=headers) as response:
        assert response.headers["X-Request-Id"] == "trace-7"
    async with http.post("v1/completions", json={"prompt": ["a", "b"]}, headers=headers) as response:
        assert response.status == 200
    async with http.get("nowhere", headers=headers) as response:
        assert response.headers["X-Request-Id"] == "trace-7"
    ids = [submitted.request_id for submitted in engine.submitted]
    assert ids == [made_up, "trace-7", "trace-7-0", "trace-7-1"]


async def test_tcp_nodelay(server: TestServer) -> None:
    """Small events must not wait for Nagle's algorithm."""
    import socket

    seen: list[int] = []

    async def peek(request, response):
        sock = request.transport.get_extra_info("socket")
        seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    app = build_app(FakeEngine(), EngineConfig.create(model="fake"), ServerOptions.create())
    app.on_response_prepare.append(peek)
    async with (
        TestServer(app) as other,
        aiohttp.ClientSession() as session,
        session.get(other.make_url("/health")) as response,
    ):
        assert response.status == 200
    assert seen == [1]


class TestApiKey:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions.create(api_key="s3cret")

    @pytest.mark.parametrize("header", [None, "Bearer wrong", "s3cret", "Basic s3cret", "Bearer s3cret "])
    @pytest.mark.parametrize("path", ["v1/models", "server_info", "load"])
    async def test_refused(self, http: aiohttp.ClientSession, path: str, header: str | None) -> None:
        headers = {"Authorization": header} if header else {}
        if header == "Bearer s3cret ":
            headers = {"Authorization": "Bearer s3cretx"}
        async with http.get(path, headers=headers) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"

    async def test_let_in(self, http: aiohttp.ClientSession) -> None:
        headers = {"Authorization": "Bearer s3cret"}
        async with http.get("server_info", headers=headers) as response:
            text = await response.text()
            assert response.status == 200
        assert "s3cret" not in text

    @pytest.mark.parametrize("path", ["health", "metrics", "version"])
    async def test_open_to_probes(self, http: aiohttp.ClientSession, path: str) -> None:
        async with http.get(path) as response:
            assert response.status == 200


async def test_queue_full(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.queue_full = True
    body = {"prompt": "hi", "stream": True}
    async with http.post("v1/completions", json=body) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "queue_full"
    async with http.get("metrics") as response:
        lines = (await response.text()).splitlines()
    (line,) = [line for line in lines if line.startswith("vllm:admission_rejections_total{")]
    assert line.endswith(" 1.0")
