"""The truth server's socket: its connections note when a request's first bytes were read.

A handler starts after the request was parsed and after every other handler that was ready, so its own stamp
charges a burst's later requests with the earlier ones' work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from aiohttp import web

from engine.errors import InvalidInputError


class Receipts:
    """Per connection, when the first bytes of the request that is under way were read. Requests that are
    pipelined share the first one's stamp: the later ones have none."""

    def __init__(self) -> None:
        self._first_ns: dict[asyncio.BaseTransport, int] = {}

    def note(self, transport: asyncio.BaseTransport) -> None:
        self._first_ns.setdefault(transport, time.monotonic_ns())

    def take(self, transport: asyncio.BaseTransport | None) -> int | None:
        """The stamp of the request that was read whole; the next bytes begin another."""
        return None if transport is None else self._first_ns.pop(transport, None)


class _Connection(asyncio.Protocol):
    """``inner`` with a stamp before every delivery."""

    def __init__(self, inner: asyncio.Protocol, receipts: Receipts) -> None:
        self._inner = inner
        self._receipts = receipts
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._receipts.note(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receipts.take(self._transport)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


async def listen(
    app: web.Application, receipts: Receipts, host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Serve until cancelled; ``ready`` gets the base URL once it listens.

    Raises:
        InvalidInputError: the address can't be listened on.
    """
    runner = web.AppRunner(app, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        http = cast("Callable[[], asyncio.Protocol]", runner.server)
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                lambda: _Connection(http(), receipts), host, port, backlog=4096
            )
        except OSError as error:
            raise InvalidInputError("port", port, f"a free port on {host} ({error.strerror})") from None
        try:
            ready(f"http://{host}:{listener.sockets[0].getsockname()[1]}")
            await asyncio.Event().wait()
        finally:
            listener.close()
    finally:
        await runner.cleanup()
