"""A truth server on a free port, inside the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from workbench.benchspec import Deadlines
from workbench.load.bodies import PreparedRequest
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.wire import open_session
from workbench.mock_server import MockServer, Script, serve


@asynccontextmanager
async def running(server: MockServer) -> AsyncIterator[str]:
    """Base URL of ``server``."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(server, "127.0.0.1", 0, url.set_result))
    try:
        yield await asyncio.wait_for(url, 10)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def requests(
    count: int, *, every_ms: float | None = 0.0, max_tokens: int = 4, **more: object
) -> list[PreparedRequest]:
    """``every_ms`` None: a closed loop. ``more``: further fields of the body."""
    import json

    body = {
        "model": "mock",
        "prompt": [1, 2, 3],
        "stream": True,
        "max_tokens": max_tokens,
        "return_token_ids": True,
    }
    body |= {"stream_options": {"include_usage": True}, **more}
    return [
        PreparedRequest(
            request_id=f"q{i}",
            index=i,
            phase="measure",
            group="g",
            offset_ns=None if every_ms is None else round(i * every_ms * 1e6),
            max_tokens=max_tokens,
            num_prompt_tokens=3,
            body=json.dumps(body).encode(),
        )
        for i in range(count)
    ]


async def send(
    server: MockServer,
    prepared: list[PreparedRequest],
    *,
    deadlines: Deadlines | None = None,
    chat: bool = False,
    **plan: object,
) -> LoadResult:
    """Play ``prepared`` against ``server``."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    async with running(server) as url, open_session({}, deadlines or Deadlines()) as session:
        return await play(LoadPlan(prepared, url + path, deadlines=deadlines or Deadlines(), **plan), session)  # type: ignore[arg-type]


async def send_one(script: Script, **more: object):
    """The record of one request answered by ``script``."""
    server = MockServer(script)
    deadlines = more.pop("deadlines", None)
    chat = bool(more.pop("chat", False))
    result = await send(server, requests(1, **more), deadlines=deadlines, chat=chat)  # type: ignore[arg-type]
    return result.records[0], server.arrivals[0]
