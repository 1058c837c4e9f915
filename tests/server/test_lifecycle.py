"""Start, stop, drain and death of a server, in this process and over the scripted engine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from engine.config import EngineConfig
from engine.errors import EngineDeadError, InvalidInputError, ModelLoadError
from engine.server.options import ServerOptions
from engine.server.runner import run, serve
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import DEADLINE_S, until

CONFIG = EngineConfig.create(model="fake")
LISTENING = re.compile(r"Serving fake on (http://127\.0\.0\.1:(\d+)) \(ready in \d+\.\d s\)\n")


@dataclass
class Running:
    """A server that is up."""

    url: str
    exit_code: asyncio.Task[int]
    engine: FakeEngine

    async def finish(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self.exit_code), DEADLINE_S)


Start = Callable[..., Awaitable[Running]]


@pytest_asyncio.fixture
async def start(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Start]:
    started: list[Running] = []

    async def begin(drain_timeout_s: float = 30.0, stall_after: int | None = 2) -> Running:
        engine = FakeEngine(stall_after=stall_after)

        async def start_engine(_: EngineConfig) -> FakeEngine:
            return engine

        options = ServerOptions.create(port=0, drain_timeout_s=drain_timeout_s)
        task = asyncio.create_task(serve(CONFIG, options, start_engine))
        printed = ""

        def is_listening() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return task.done() or LISTENING.fullmatch(printed) is not None

        await until(is_listening)
        match = LISTENING.fullmatch(printed)
        assert match is not None, printed
        started.append(Running(match[1], task, engine))
        return started[-1]

    yield begin
    for server in started:
        server.engine.released.set()
        if not server.exit_code.done():
            stop()
            await server.finish()


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def stop(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


async def _post(session: aiohttp.ClientSession, server: Running, stream: bool) -> tuple[int, str]:
    url = f"{server.url}/v1/completions"
    async with session.post(url, json={"prompt": "hi", "stream": stream}) as response:
        return response.status, await response.text()


async def _both(session: aiohttp.ClientSession, server: Running) -> asyncio.Future[list[tuple[int, str]]]:
    """A whole and a streamed answer, both in the middle."""
    tasks = [asyncio.create_task(_post(session, server, stream)) for stream in (False, True)]
    await until(lambda: len(server.engine.stalled) == 2)
    return asyncio.gather(*tasks)


async def _draining(session: aiohttp.ClientSession, server: Running) -> None:
    """Return when the server has stopped to listen."""
    port = int(server.url.rpartition(":")[2])

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    await until(refused)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_idle_stop(start: Start, number: signal.Signals) -> None:
    server = await start()
    stop(number)
    assert await server.finish() == 0


async def test_drain_lets_requests_finish(start: Start, session: aiohttp.ClientSession) -> None:
    server = await start()
    answers = await _both(session, server)
    stop()
    await _draining(session, server)
    assert not server.exit_code.done()
    server.engine.released.set()
    whole, streamed = await asyncio.wait_for(answers, DEADLINE_S)
    assert whole[0] == 200
    assert server.engine.reply in whole[1]
    assert streamed[1].endswith("data: [DONE]\n\n")
    assert await server.finish() == 0
    assert server.engine.aborted == []


async def test_an_open_connection_is_told(start: Start, session: aiohttp.ClientSession) -> None:
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    get_health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    writer.write(get_health)
    assert b"200" in await reader.readuntil(b"\r\n")
    answers = await _both(session, server)
    stop()
    await _draining(session, server)
    body = b'{"prompt": "late"}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await reader.readuntil(b"}")  # rest of the first answer
    assert b"503" in await asyncio.wait_for(reader.readuntil(b"\r\n"), DEADLINE_S)
    assert b"shutting_down" in await asyncio.wait_for(reader.readuntil(b"}}"), DEADLINE_S)
    writer.close()
    server.engine.released.set()
    await answers
    assert await server.finish() == 0


@pytest.mark.parametrize("why", ["grace is over", "second signal"])
async def test_drain_ends(start: Start, session: aiohttp.ClientSession, why: str) -> None:
    server = await start(drain_timeout_s=0.05 if why == "grace is over" else 3000.0)
    answers = await _both(session, server)
    stop()
    if why == "second signal":
        await _draining(session, server)
        stop()
    whole, streamed = await asyncio.wait_for(answers, DEADLINE_S)
    assert whole[0] == 503
    assert '"code":"shutting_down"' in whole[1]
    assert streamed[0] == 200
    assert '"code":"shutting_down"' in streamed[1].splitlines()[-2]
    assert "[DONE]" not in streamed[1]
    assert await server.finish() == 0
    assert len(server.engine.aborted) == 2


async def test_engine_death(
    start: Start, session: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await start()
    answers = await _both(session, server)
    server.engine.die("segfault")
    whole, streamed = await asyncio.wait_for(answers, DEADLINE_S)
    assert whole[0] == 500
    assert "the engine died: segfault" in whole[1]
    assert "the engine died: segfault" in streamed[1].splitlines()[-2]
    assert await server.finish() == 1
    assert capsys.readouterr().err == "error: the engine died: segfault\n"


async def test_stop_while_loading() -> None:
    loading = asyncio.Event()
    cancelled = False

    async def start_engine(_: EngineConfig) -> FakeEngine:
        nonlocal cancelled
        loading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
        raise AssertionError("unreachable")

    task = asyncio.create_task(serve(CONFIG, ServerOptions.create(port=0), start_engine))
    await loading.wait()
    stop()
    assert await asyncio.wait_for(task, DEADLINE_S) == 0
    assert cancelled


def _failing(error: Exception) -> Callable[[EngineConfig], Awaitable[FakeEngine]]:
    async def start_engine(_: EngineConfig) -> FakeEngine:
        raise error

    return start_engine


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelLoadError("model='x': no such file"), 2, "error: model='x': no such file"),
        (InvalidInputError("block_size", 7, "a power of two"), 2, "error: block_size=7: a power of two"),
        (EngineDeadError("killed"), 1, "error: the engine did not start: killed"),
    ],
)
def test_failed_start(capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str) -> None:
    assert run(CONFIG, ServerOptions.create(port=0), _failing(error)) == code
    captured = capsys.readouterr()
    assert captured.err == f"{line}\n"
    assert captured.out == ""


@pytest.mark.parametrize("what", ["port", "host"])
def test_address_is_checked_before_the_model(capsys: pytest.CaptureFixture[str], what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fields = {"port": port} if what == "port" else {"host": "no.such.host.invalid"}
        code = run(CONFIG, ServerOptions.create(**fields), _failing(AssertionError("the model was loaded")))
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {what}=")
