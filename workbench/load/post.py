"""POSTs to one URL over a session's connections, with what does not change made once.

``aiohttp.ClientSession.post`` builds URL, headers, cookies, time-outs, a writer's task and a response object
for each request, which is most of the work of a short answer. Connecting, pooling, TLS and the parsing of
heads stay aiohttp's. Redirects are not followed (their time would count as the server's), cookies not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from yarl import URL

from workbench.load.wire import READ_BUFFER, StampedHandler, Wire

_PER_REQUEST = frozenset({"content-length", "transfer-encoding", "x-request-id"})


@dataclass(slots=True)
class Answer:
    """The head of an answer, and its body as aiohttp reads it."""

    status: int
    content_type: str
    location: str | None
    content: StreamReader
    connection: Connection

    def close(self) -> None:
        """Give the connection back, or up when the body has not ended."""
        self.connection.release()


class Post:
    """Sends bodies to ``url``. Needs the running loop of ``session``."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        connector = session.connector
        if connector is None:
            raise RuntimeError("the session is closed")
        self._connector = connector
        self._timeout = session.timeout
        # Only for its address and its headers; it is never sent itself.
        self._request = ClientRequest(
            "POST", URL(url), headers=session.headers, loop=connector._loop, session=session
        )
        lines = [f"POST {self._request.url.raw_path_qs} HTTP/1.1"]
        lines += [f"{k}: {v}" for k, v in self._request.headers.items() if k.lower() not in _PER_REQUEST]
        if any("\r" in line or "\n" in line or "\0" in line for line in lines):
            raise ValueError("a header holds a line break")
        self._head = "\r\n".join([*lines, ""]).encode("utf-8")

    async def send(self, wire: Wire, request_id: str, body: bytes) -> Answer:
        """Send ``body``; returns when the head of the answer is there.

        Raises:
            aiohttp.ClientError: no connection, or no answer on it.
        """
        head = self._head + f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        try:
            connection = await self._connector.connect(self._request, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._request.url} in time") from error
        except aiohttp.ClientError:
            raise
        except OSError as error:
            raise aiohttp.ClientOSError(*error.args) from error
        try:
            return await self._exchange(connection, wire, head + body)
        except BaseException:
            connection.close()
            raise

    async def _exchange(self, connection: Connection, wire: Wire, message: bytes) -> Answer:
        handler, transport = connection.protocol, connection.transport
        if handler is None or transport is None:
            raise aiohttp.ServerDisconnectedError
        if isinstance(handler, StampedHandler):
            wire.handler = handler
            handler.begin(wire)
        handler.set_response_params(read_until_eof=True, auto_decompress=True, read_bufsize=READ_BUFFER)
        transport.write(message)
        while True:
            try:
                head, content = await handler.read()
            except HttpProcessingError as error:
                raise aiohttp.ClientError(f"no answer of HTTP: {error.message}") from error
            if not 100 <= head.code < 200:
                break
        content.on_eof(connection.release)
        kind = head.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return Answer(head.code, kind, head.headers.get("Location"), content, connection)
