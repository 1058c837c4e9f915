"""The HTTP session for measuring, and the stamp of the bytes' arrival.

A task that reads a body runs some time after the socket handed the bytes over: behind everything else
that the same
turn of the event loop does. With hundreds of streams that an engine's step feeds at once, that is
milliseconds. So
the stamp is taken in the protocol's own callback.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from workbench.benchspec import Deadlines

_READ_BUFFER = 1 << 22
"""aiohttp's default of 64 KiB pauses reading under large events and many streams."""
_KEEPALIVE_S = 4.0
"""Below the 5 s after which common servers close an idle connection: none is reused while it is being
closed."""


class StampedHandler(ResponseHandler):
    """Notes when the socket last handed bytes over."""

    received_ns = 0

    def data_received(self, data: bytes) -> None:
        self.received_ns = time.monotonic_ns()
        super().data_received(data)


@dataclass(slots=True)
class Wire:
    """The connection that a request travels on, as soon as there is one."""

    handler: StampedHandler | None = None

    def received_ns(self) -> int:
        """Arrival of the last bytes; now, where the transport does not tell (a TLS proxy, a foreign
        handler)."""
        return self.handler.received_ns if self.handler is not None else time.monotonic_ns()


_wire: ContextVar[Wire] = ContextVar("wire")


def new_wire() -> Wire:
    """The wire of the request that the current task is about to send."""
    wire = Wire()
    _wire.set(wire)
    return wire


class _Connector(aiohttp.TCPConnector):
    """Hands each request's connection to its wire."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[aiohttp.tracing.Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        wire, handler = _wire.get(None), connection.protocol
        if wire is not None:
            wire.handler = handler if isinstance(handler, StampedHandler) else None
        return connection


def open_session(headers: Mapping[str, str], deadlines: Deadlines) -> aiohttp.ClientSession:
    """A session for measuring: no connection limit, no total time-out, no retries, no proxies from the
    environment."""
    connector = _Connector(limit=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=300)
    make = functools.partial(StampedHandler, loop=connector._loop)
    connector._factory = cast("functools.partial[ResponseHandler]", make)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadlines.connect_s),
        headers={"Content-Type": "application/json", "Accept": "text/event-stream", **headers},
        read_bufsize=_READ_BUFFER,
        auto_decompress=True,
    )
