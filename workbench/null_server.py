"""A server that costs almost nothing: what is left of a measurement against it is the client.

One asyncio protocol, answers made beforehand, one write per event. It speaks just enough HTTP/1.1 for a
keep-alive
client that sends bodies with a Content-Length, and stamps every request on the host's monotonic clock
when its first
byte arrives. For scripted behaviour use :mod:`workbench.mock_server`.

Run as ``python -m workbench.null_server --ttft-ms 0 --itl-ms 10``; the first line on stdout is its URL.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

_CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


@dataclass(slots=True)
class NullScript:
    """Every answer: ``max_tokens`` events of one token, the first after ``ttft_s``, then one each
    ``itl_s``."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    arrivals: list[tuple[str, int]] = field(default_factory=list)
    """(request id, ns of the first byte)."""


class NullProtocol(asyncio.Protocol):
    """One connection; requests on it are answered one after another."""

    def __init__(self, script: NullScript) -> None:
        self._script = script
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._begun_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._begun_ns = time.monotonic_ns()
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            size = int(_header(head, b"content-length") or b"0")
            if len(self._buffer) < end + 4 + size:
                return
            body = self._buffer[end + 4 : end + 4 + size]
            self._buffer = self._buffer[end + 4 + size :]
            if head.startswith(b"POST"):
                request_id = (_header(head, b"x-request-id") or b"").decode("latin-1")
                self._script.arrivals.append((request_id, self._begun_ns))
                self._answer(_max_tokens(body))
            else:
                self._get(head.split(b" ", 2)[1])

    def _answer(self, count: int) -> None:
        script = self._script
        if script.itl_s <= 0:
            whole = _CHUNKED + _EVENT * (count - 1) + _tail(count)
            if script.ttft_s <= 0:
                self._write(whole)
            else:
                self._timer = self._loop.call_later(script.ttft_s, self._write, whole)
            return
        self._write(_CHUNKED)
        self._next(self._loop.time() + script.ttft_s, count, count)

    def _next(self, due: float, left: int, count: int) -> None:
        if left == 1:
            self._timer = self._loop.call_at(due, self._write, _tail(count))
        else:
            self._timer = self._loop.call_at(due, self._event, due, left, count)

    def _event(self, due: float, left: int, count: int) -> None:
        self._write(_EVENT)
        self._next(due + self._script.itl_s, left - 1, count)

    def _get(self, path: bytes) -> None:
        value: dict[str, Any] = {}
        if path == b"/v1/models":
            value = {"object": "list", "data": [{"id": "null", "object": "model"}]}
        elif path == b"/mock/log":
            value = {"arrivals": [{"request_id": i, "arrived_ns": t} for i, t in self._script.arrivals]}
            self._script.arrivals.clear()
        body = json.dumps(value).encode()
        status = b"200 OK" if value else b"404 Not Found"
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % (status, len(body)) + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _event(**choice: Any) -> bytes:
    value = {"id": "null", "object": "text_completion", "model": "null", "choices": [{"index": 0, **choice}]}
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_EVENT = _event(text=" token", finish_reason=None, token_ids=[7])
_LAST = _event(text=" token", finish_reason="length", token_ids=[7])
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _tail(count: int) -> bytes:
    usage = b'{"prompt_tokens": 1, "completion_tokens": %d, "total_tokens": %d}' % (count, count + 1)
    return _LAST + _chunk(b'data: {"choices": [], "usage": %s}\n\n' % usage) + _END


def _header(head: bytes, name: bytes) -> bytes | None:
    lower = head.lower()
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def _max_tokens(body: bytes) -> int:
    at = body.find(b'"max_tokens":')
    digits = body[at + 13 : at + 24].lstrip().split(b",", 1)[0].split(b"}", 1)[0] if at >= 0 else b"1"
    return max(1, int(digits))


async def serve_null(script: NullScript, host: str = "127.0.0.1", port: int = 0) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: NullProtocol(script), host, port, backlog=4096
    )
    print(f"http://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    flags = parser.parse_args()
    script = NullScript(flags.ttft_ms / 1e3, flags.itl_ms / 1e3)
    gc.disable()  # its stamps judge clients: no pause of its own
    with suppress(KeyboardInterrupt):
        import uvloop

        uvloop.run(serve_null(script, port=flags.port))


if __name__ == "__main__":
    main()
