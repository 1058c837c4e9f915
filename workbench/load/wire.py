"""The HTTP session for measuring, and the stamp of the bytes' arrival.

A task that reads a body runs some time after the socket handed the bytes over: behind everything else
that the same
turn of the event loop does. With hundreds of streams that an engine's step feeds at once, that is
milliseconds. So
the stamp is taken in the protocol's own callback, and the body of an event stream goes no further from there
(:mod:`workbench.load.body`): aiohttp connects, pools, sends, reads the head and learns of the end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from workbench.benchspec import Deadlines
from workbench.load.body import StreamBody, is_ours

READ_BUFFER = 1 << 22
"""aiohttp's default of 64 KiB pauses reading under large events and many streams."""
_KEEPALIVE_S = 4.0
"""Below the 5 s after which common servers close an idle connection: none is reused while it is being
closed."""


class StampedHandler(ResponseHandler):
    """Notes when the socket last handed bytes over, and keeps the body of an event stream to itself."""

    received_ns = 0
    _wire: Wire | None = None
    """Of the request that waits for its head."""
    _body: StreamBody | None = None

    def begin(self, wire: Wire) -> None:
        """The next answer on this connection is that of ``wire``."""
        self._wire, self._body = wire, None

    def data_received(self, data: bytes) -> None:
        self.received_ns = now_ns = time.monotonic_ns()
        body = self._body
        if body is not None and body.open:
            body.take(now_ns, data)
        elif self._wire is not None and data:
            self._head(self._wire, now_ns, data)
        else:
            super().data_received(data)

    def _head(self, wire: Wire, now_ns: int, data: bytes) -> None:
        """The first bytes of an answer. A head in pieces is rare, and left to aiohttp with its body."""
        self._wire = None
        wire.head_ns = now_ns
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or not is_ours(data[:end]):
            super().data_received(data)
            return
        wire.body = self._body = body = StreamBody(super().data_received)
        super().data_received(data[:end])
        if len(data) > end:
            body.take(now_ns, data[end:])


@dataclass(slots=True)
class Wire:
    """The connection that a request travels on, as soon as there is one."""

    handler: StampedHandler | None = None
    head_ns: int | None = None
    """Arrival of the first bytes of the answer."""
    body: StreamBody | None = None
    """What comes past aiohttp; None where it reads the body itself."""

    def received_ns(self) -> int:
        """Arrival of the last bytes; now, where the transport does not tell (a TLS proxy, a foreign
        handler)."""
        return self.handler.received_ns if self.handler is not None else time.monotonic_ns()


def open_session(headers: Mapping[str, str], deadlines: Deadlines) -> aiohttp.ClientSession:
    """A session for measuring: no connection limit, no total time-out, no retries, no proxies from the
    environment."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=300)
    make = functools.partial(StampedHandler, loop=connector._loop)
    connector._factory = cast("functools.partial[ResponseHandler]", make)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadlines.connect_s),
        headers={"Content-Type": "application/json", "Accept": "text/event-stream", **headers},
        read_bufsize=READ_BUFFER,
        auto_decompress=True,
    )
