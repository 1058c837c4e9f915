"""When the truth server says that a request arrived."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from tests.workbench.mock import running
from workbench.mock_server import MockServer

BODY = b'{"model": "mock", "prompt": [1, 2], "max_tokens": 1, "stream": true}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: mock\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nX-Request-Id: slow\r\n\r\n" % len(BODY)
)


async def test_it_arrived_with_its_first_bytes():
    server = MockServer()
    async with running(server) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        before_ns = time.monotonic_ns()
        writer.write(HEAD)
        await asyncio.sleep(0.1)
        between_ns = time.monotonic_ns()
        writer.write(BODY)
        await reader.readuntil(b"[DONE]")
        writer.close()
    (arrival,) = server.arrivals
    assert before_ns <= arrival.arrived_ns < between_ns


async def test_it_did_not_arrive_with_an_earlier_request_of_its_connection():
    server = MockServer()
    starts = []
    async with (
        running(server) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        for method, path, body in (
            ("GET", "/health", None),
            ("POST", "/v1/completions", BODY),
            ("GET", "/nowhere", None),
            ("POST", "/v1/completions", b"{"),
            ("POST", "/v1/completions", BODY),
        ):
            starts.append(time.monotonic_ns())
            async with session.request(method, url + path, data=body) as answer:
                await answer.read()
    stamps = [arrival.arrived_ns for arrival in server.arrivals]
    assert starts[1] <= stamps[0] < starts[2]
    assert starts[4] <= stamps[1] <= time.monotonic_ns()
