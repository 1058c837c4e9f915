"""A server on a free loopback port, over the scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from engine.server.app import build_app
from engine.server.options import ServerOptions
from tests.server.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions.create(max_body_bytes=200_000)


@pytest_asyncio.fixture
async def server(engine: FakeEngine, options: ServerOptions) -> AsyncIterator[TestServer]:
    server = TestServer(
        build_app(engine, engine.config, options)
    )  # cancels handlers of gone clients, as the runner does
    await server.start_server(auto_decompress=False)
    yield server
    engine.released.set()
    await server.close()


@pytest_asyncio.fixture
async def http(server: TestServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.make_url("/")) as session:
        yield session


@pytest_asyncio.fixture
async def client(server: TestServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="none", max_retries=0) as client:
        yield client
