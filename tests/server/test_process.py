"""The real thing: server process, engine process, a tiny model. What the scripted engine can't show."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from engine.config import EngineConfig
from tests.helpers.tiny_model import make_tiny_model
from tests.server.real_server import DEADLINE_S, START_S, Server, launch, settle, start, stop

LONG = {"prompt": "The quick brown fox", "max_tokens": 30_000, "ignore_eos": True}
"""Runs for many seconds unless it is aborted."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=32_768)
    return EngineConfig.create(
        model=str(folder),
        served_model_name="tiny",
        dtype="float32",
        num_threads=1,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=2,
        max_waiting_requests=1,
        check_invariants=True,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(config: EngineConfig) -> AsyncIterator[Server]:
    server = await start(config)
    yield server
    await stop(server)


@pytest_asyncio.fixture(loop_scope="module")
async def http(shared: Server) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(shared.url) as session:
        yield session


@pytest.mark.asyncio(loop_scope="module")
class TestServing:
    async def test_greedy_is_one_text_in_every_shape(self, shared: Server) -> None:
        async with AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as client:
            ask: dict[str, Any] = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "temperature": 0,
                "max_tokens": 40,
                "logprobs": True,
                "extra_body": {"return_token_ids": True, "ignore_eos": True},
            }
            whole = await client.chat.completions.create(**ask)
            chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
            prompt_ids = whole.model_extra["prompt_token_ids"]
            again = await client.completions.create(
                model="tiny", prompt=prompt_ids, temperature=0, max_tokens=40, extra_body=ask["extra_body"]
            )
        choices = [chunk.choices[0] for chunk in chunks]
        text = whole.choices[0].message.content
        ids = whole.choices[0].model_extra["token_ids"]
        assert len(ids) == 40
        assert "".join(choice.delta.content or "" for choice in choices) == text
        assert [i for choice in choices for i in choice.model_extra.get("token_ids", [])] == ids
        assert sum(len(choice.logprobs.content) for choice in choices if choice.logprobs) == 40
        assert again.choices[0].text == text
        assert again.usage.prompt_tokens_details.cached_tokens == len(prompt_ids) // 16 * 16

    async def test_server_info(
        self, shared: Server, http: aiohttp.ClientSession, config: EngineConfig
    ) -> None:
        async with http.get("/server_info") as response:
            info = await response.json()
        assert EngineConfig.create(**info["config"]) == config
        assert info["pid"] == shared.process.pid
        assert info["resolved"]["num_kv_blocks"] > 2
        assert info["resolved"]["max_model_len"] == 32_768

    async def test_the_server_process_has_no_torch(self, shared: Server) -> None:
        def torch_libraries(process: psutil.Process) -> list[str]:
            return [area.path for area in process.memory_maps() if "libtorch" in area.path]

        assert torch_libraries(psutil.Process(shared.process.pid)) == []
        assert torch_libraries(shared.engine_process) != []

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_client_that_leaves_frees_everything(
        self, shared: Server, http: aiohttp.ClientSession, stream: bool
    ) -> None:
        async with aiohttp.ClientSession(shared.url) as leaving:
            tasks = [asyncio.create_task(post(leaving, {**LONG, "stream": stream})) for _ in range(3)]
            busy = await settle(http, running=2, waiting=1)
            assert busy["vllm:kv_cache_usage_perc"] > 0
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        idle = await settle(http, running=0)
        assert idle["vllm:kv_cache_usage_perc"] == 0
        assert idle["workbench:http_requests_inflight"] == 0

    async def test_queue_limit(self, shared: Server, http: aiohttp.ClientSession) -> None:
        async with aiohttp.ClientSession(shared.url) as others:
            tasks = [asyncio.create_task(post(others, LONG)) for _ in range(3)]
            await settle(http, running=2, waiting=1)
            async with http.post("/v1/completions", json={"prompt": "hi"}) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "1"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await settle(http, running=0)
        async with http.post("/v1/completions", json={"prompt": "hi"}) as response:
            assert response.status == 200

    async def test_reset_prefix_cache(self, http: aiohttp.ClientSession) -> None:
        body = {"prompt": list(range(3, 60)), "max_tokens": 1}

        async def cached() -> int:
            async with http.post("/v1/completions", json=body) as response:
                usage = (await response.json())["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert await cached() == 0
        assert await cached() == 48
        async with http.post("/reset_prefix_cache") as response:
            assert response.status == 200
        assert await cached() == 0


async def post(http: aiohttp.ClientSession, body: dict[str, Any]) -> str:
    async with http.post("/v1/completions", json=body) as response:
        return await response.text()


async def test_engine_process_killed(config: EngineConfig) -> None:
    server = await start(config)
    try:
        async with aiohttp.ClientSession(server.url) as http:
            whole = asyncio.create_task(post(http, LONG))
            streamed = asyncio.create_task(post(http, {**LONG, "stream": True}))
            await settle(http, running=2)
            server.engine_process.kill()
            for text in await asyncio.wait_for(asyncio.gather(whole, streamed), DEADLINE_S):
                assert '"code":"engine_dead"' in text.splitlines()[-2 if "data:" in text else 0]
        code, err = await server.exit()
        assert code == 1
        assert err.splitlines()[-1].startswith("error: the engine died: ")
    finally:
        await stop(server)


async def test_sigterm_ends_both_processes(config: EngineConfig) -> None:
    server = await start(config, "--drain-timeout-s", "0.2")
    engine = server.engine_process
    try:
        async with aiohttp.ClientSession(server.url) as http:
            streamed = asyncio.create_task(post(http, {**LONG, "stream": True}))
            await settle(http, running=1)
            server.process.send_signal(signal.SIGTERM)
            assert '"code":"shutting_down"' in await asyncio.wait_for(streamed, DEADLINE_S)
        assert await server.exit() == (0, "")
        assert not engine.is_running()
    finally:
        await stop(server)


async def test_missing_model() -> None:
    missing = await launch(EngineConfig.create(model="/no/such/model.gguf"), "--port", "0")
    _, err = await asyncio.wait_for(missing.communicate(), START_S)
    assert missing.returncode == 2
    (line,) = err.decode().splitlines()
    assert line.startswith("error: ")
    assert "/no/such/model.gguf" in line
