"""The body of an event stream past aiohttp: framing, stamps, and what is given back to it."""

from __future__ import annotations

import pytest

from workbench.load.body import StreamBody, is_ours
from workbench.load.chunked import ChunkedDecoder

PIECES = (b"data: 1\n\n", b"data: two\r\n\r\n", b"x" * 300, b"\r\n0\r\n\r\n")


def framed(pieces: tuple[bytes, ...], end: bytes = b"0\r\n\r\n", extension: bytes = b"") -> bytes:
    return b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces) + end


MESSAGES = {
    "plain": framed(PIECES),
    "extension": framed(PIECES, extension=b" ;a=1"),
    "trailers": framed(PIECES, end=b"00\r\nX-A: 1\r\nX-B: 2\r\n\r\n"),
    "capitals": b"A\r\n0123456789\r\n0\r\n\r\n",
    "empty": b"0\r\n\r\n",
}
PAYLOADS = dict.fromkeys(MESSAGES, b"".join(PIECES)) | {"capitals": b"0123456789", "empty": b""}


@pytest.mark.parametrize("name", MESSAGES)
def test_any_split_gives_the_same_payload(name):
    message = MESSAGES[name]
    for cut in range(len(message) + 1):
        decoder = ChunkedDecoder()
        assert decoder.feed(message[:cut]) + decoder.feed(message[cut:]) == PAYLOADS[name], cut
        assert decoder.done
    decoder = ChunkedDecoder()
    assert b"".join(decoder.feed(message[i : i + 1]) for i in range(len(message))) == PAYLOADS[name]
    assert decoder.done


def test_payload_comes_with_the_read_that_brings_it_and_what_follows_is_kept():
    decoder = ChunkedDecoder()
    assert decoder.feed(b"10\r\n01234567") == b"01234567"
    assert decoder.feed(b"89abcdef") == b"89abcdef"
    assert not decoder.done
    assert decoder.feed(b"\r\n0\r\n\r\nHTTP/1.1 200 OK") == b""
    assert (decoder.done, decoder.rest) == (True, b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("message", [b"zz\r\n", b"\r\n", b"-1\r\n", b"0x5\r\n", b" 5\r\n", b"f" * 9000])
def test_what_is_no_framing_is_told(message):
    decoder = ChunkedDecoder()
    decoder.feed(b"1\r\na\r\n")
    with pytest.raises(ValueError, match="no chunked framing"):
        decoder.feed(message)
    assert decoder.rest == message


def test_a_chunk_longer_than_its_size_is_told():
    with pytest.raises(ValueError, match="no chunked framing"):
        ChunkedDecoder().feed(b"2\r\nabc\r\n")


@pytest.mark.parametrize("name", MESSAGES)
def test_the_end_is_seen_wherever_reads_are_cut_and_each_read_keeps_its_time(name):
    message = MESSAGES[name]
    for cut in range(1, len(message)):
        given: list[bytes] = []
        body = StreamBody(given.append)
        body.take(1, message[:cut])
        assert given == []
        body.take(2, message[cut:])
        # aiohttp learns of the end at once, before anybody asks for the payload.
        assert given == [b"0\r\n\r\n"]
        assert not body.open
        reads = body.reads()
        assert b"".join(payload for _, payload in reads) == PAYLOADS[name]
        assert [at for at, _ in reads] == sorted({at for at, _ in reads})
        assert body.reads() == []


def test_a_body_without_framing_is_aiohttps_from_there_on():
    given: list[bytes] = []
    body = StreamBody(given.append)
    body.take(1, b"1\r\na\r\n")
    body.take(2, b"oops\r\n")
    body.take(3, b"more")
    assert body.reads() == [(1, b"a")]
    assert (given, body.open) == ([b"oops\r\nmore"], False)


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode()


def test_which_answers_are_taken():
    stream, chunked = "Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked"
    assert is_ours(head(stream, chunked))
    assert is_ours(head(stream.lower(), chunked.lower()))
    assert not is_ours(head(stream, "Content-Length: 5"))
    assert not is_ours(head("Content-Type: application/json", chunked))
    assert not is_ours(head(stream, chunked, "Content-Encoding: gzip"))
    assert not is_ours(head(stream, "Transfer-Encoding: gzip, chunked"))
    assert not is_ours(head(stream, chunked, status="HTTP/1.1 503 Service Unavailable"))
    assert not is_ours(head(stream, chunked, status="HTTP/1.0 200 OK"))
