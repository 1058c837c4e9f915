"""Answers byte by byte from a raw socket: the same record whether aiohttp reads the body or not."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence

import pytest

from tests.workbench.mock import requests
from workbench.benchspec import Deadlines
from workbench.load.runner import LoadPlan, play
from workbench.load.wire import open_session

EVENTS = b"".join(b'data: {"choices":[{"text":"a","token_ids":[%d]}]}\n\n' % i for i in (1, 2))
DONE = b"data: [DONE]\n\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n"
ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answered(writes: Sequence[bytes], count: int = 1, *, close: bool = False, **deadlines: float):
    """Records of ``count`` requests, one after another, each answered with ``writes``; heads as the server
    saw them, and the number of connections."""
    heads: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                size = next(
                    line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(int(size.split(b":")[1]))
                for data in writes:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits = Deadlines(**deadlines)
    async with server, open_session({"X-Mine": "1"}, limits) as session:
        plan = LoadPlan(
            requests(count, every_ms=None),
            f"http://127.0.0.1:{port}/v1/completions?a=b",
            max_concurrency=1,
            deadlines=limits,
        )
        result = await play(plan, session)
    return result.records, heads, connections


FULL = EVENTS + DONE
PACKED = gzip.compress(FULL)
WAYS = {
    "chunked": [CHUNKED + b"\r\n", chunk(EVENTS), chunk(DONE), b"0\r\n\r\n"],
    "at once": [CHUNKED + b"\r\n" + chunk(FULL) + b"0\r\n\r\n"],
    "head in pieces": [CHUNKED[:20], CHUNKED[20:] + b"\r\n" + chunk(EVENTS), chunk(DONE) + b"0\r\n\r\n"],
    "sized": [SIZED % len(FULL) + b"\r\n" + FULL],
    "gzip": [CHUNKED + b"Content-Encoding: gzip\r\n\r\n", chunk(PACKED) + b"0\r\n\r\n"],
    "hints first": [b"HTTP/1.1 103 Early Hints\r\n\r\n", CHUNKED + b"\r\n" + chunk(FULL) + b"0\r\n\r\n"],
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_send_an_answer_gives_the_same_record_and_keeps_the_connection(way):
    records, heads, connections = await answered(WAYS[way], 3)
    assert [(r.status, r.output_tokens, r.output_tokens_source) for r in records] == [
        ("ok", 2, "token_ids")
    ] * 3
    assert [[c.kind for c in r.chunks] for r in records] == [["content", "content", "done"]] * 3
    assert all(r.sent_ns < r.headers_ns <= r.first_token_ns <= r.close_ns for r in records)
    assert connections == 1
    assert len(heads) == 3


async def test_what_is_sent():
    _, heads, _ = await answered(WAYS["at once"])
    first, *lines = heads[0].decode().strip().split("\r\n")
    assert first == "POST /v1/completions?a=b HTTP/1.1"
    fields = dict(line.lower().split(": ", 1) for line in lines)
    assert len(fields) == len(lines)
    assert fields["host"].startswith("127.0.0.1:")
    assert (fields["content-type"], fields["accept"]) == ("application/json", "text/event-stream")
    assert (fields["x-mine"], fields["x-request-id"]) == ("1", "q0")
    assert "transfer-encoding" not in fields


async def test_an_error_in_a_stream_that_goes_on_ends_the_request():
    records, _, _ = await answered(
        [CHUNKED + b"\r\n" + chunk(EVENTS), chunk(ERROR), *[b""] * 200], idle_s=30.0
    )
    (record,) = records
    assert (record.status, record.error_class, record.error) == ("failed", "stream_error", "out of memory")
    assert [c.n_tokens for c in record.chunks] == [1, 1, 0]


async def test_framing_that_breaks_is_a_failure_with_what_came_before():
    records, _, _ = await answered([CHUNKED + b"\r\n" + chunk(EVENTS), b"nonsense\r\n"], close=True)
    (record,) = records
    assert (record.status, record.error_class) == ("failed", "truncated")
    assert record.output_tokens == 2


async def test_redirects_are_told_and_not_followed():
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://h/v1\r\nContent-Length: 0\r\n\r\n"
    records, heads, _ = await answered([moved])
    (record,) = records
    assert (record.status, record.error_class, record.http_status) == ("failed", "http_other", 307)
    assert "not followed: https://h/v1" in record.error
    assert len(heads) == 1
