"""The embedded model behind the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.config import EngineConfig
from tests.server.real_server import Server, settle, start, stop

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ASK: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 40,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    server = await start(EngineConfig.create(model="smollm2-135m"))
    yield server
    await stop(server)


async def test_paris(server: Server) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**ASK)
        chunks = [chunk async for chunk in await client.chat.completions.create(**ASK, stream=True)]
    text = whole.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


CLIENT = """
import sys, urllib.request
body = b'{"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": true, "stream": true}'
request = urllib.request.Request(sys.argv[1], body, {"Content-Type": "application/json"})
for line in urllib.request.urlopen(request):
    print(line, flush=True)
"""


async def test_client_killed_in_the_middle(server: Server) -> None:
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, f"{server.url}/v1/completions"), stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    await client.stdout.readline()
    async with aiohttp.ClientSession(server.url) as http:
        assert (await settle(http, running=1))["vllm:kv_cache_usage_perc"] > 0
        client.kill()
        await client.wait()
        idle = await settle(http, running=0)
        assert idle["vllm:kv_cache_usage_perc"] == 0
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
    (aborted,) = [line for line in lines if 'finished_reason="abort"' in line and "_total{" in line]
    assert aborted.endswith(" 1.0")
