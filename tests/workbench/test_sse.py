"""The SSE parser: any split of the bytes gives the events of the whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.load.sse import SseEvent, SseParser

CORPUS: dict[str, tuple[bytes, list[bytes]]] = {
    "lf": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "cr": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed line ends": (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r", [b"a", b"b", b"c"]),
    "no space": (b"data:a\n\n", [b"a"]),
    "two spaces": (b"data:  a\n\n", [b" a"]),
    "comment": (b": ping\n\ndata: a\n: inside\n\n", [b"a"]),
    "other fields": (b"id: 7\nretry: 10\nevent: message\ndata: a\n\n", [b"a"]),
    "several data lines": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "empty data": (b"data:\n\n", [b""]),
    "data without colon": (b"data\n\n", [b""]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "byte order mark in the text": (b"data: \xef\xbb\xbfa\n\n", [b"\xef\xbb\xbfa"]),
    "line separator U+2028": (
        "data: a\u2028b\u2029c\u0085d\x0b\x0c\x1ce\n\n".encode(),
        ["a\u2028b\u2029c\u0085d\x0b\x0c\x1ce".encode()],
    ),
    "four-byte character": ("data: 🙂é汉\n\n".encode(), ["🙂é汉".encode()]),
    "no blank line at the end": (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
    "blank lines only": (b"\n\n\r\n\r\r", []),
    "nothing": (b"", []),
    "event without data": (b"event: ping\n\ndata: a\n\n", [b"a"]),
    "colon in the value": (b'data: {"a": "b:c"}\n\n', [b'{"a": "b:c"}']),
    "half a byte order mark": (b"\xef\xbbdata: a\n\ndata: b\n\n", [b"b"]),
}


def parse(pieces: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


@pytest.mark.parametrize("name", CORPUS)
def test_whole(name):
    stream, expected = CORPUS[name]
    assert [event.data for event in parse([stream])] == expected


@pytest.mark.parametrize("name", CORPUS)
def test_split_at_every_byte(name):
    stream, expected = CORPUS[name]
    for cut in range(len(stream) + 1):
        assert [e.data for e in parse([stream[:cut], stream[cut:]])] == expected, cut


@pytest.mark.parametrize("name", CORPUS)
def test_byte_by_byte_and_with_empty_reads(name):
    stream, expected = CORPUS[name]
    pieces = [piece for i in range(len(stream)) for piece in (stream[i : i + 1], b"")]
    assert [event.data for event in parse(pieces)] == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_any_split(stream, cuts):
    edges = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(pieces) == parse([stream])


_LINE = st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"", b"data: \xe2\x80\xa8", b"junk"])


@given(st.lists(st.tuples(_LINE, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12), st.integers(1, 5))
def test_structured_streams_in_equal_pieces(lines, size):
    stream = b"".join(line + end for line, end in lines)
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert parse(pieces) == parse([stream])


def test_events_come_with_the_read_that_completes_them():
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert [e.data for e in parser.feed(b"\nda")] == [b"a"]
    assert parser.feed(b"ta: b") == []
    assert [e.data for e in parser.feed(b"\n\n")] == [b"b"]
    assert parser.close() == []


def test_event_names_do_not_outlive_their_event():
    assert parse([b"event: error\ndata: a\n\ndata: b\n\n"]) == [SseEvent(b"error", b"a"), SseEvent(b"", b"b")]


def test_a_large_event_in_small_reads():
    body = b"x" * 1_000_000
    stream = b"data: " + body + b"\n\n"
    pieces = [stream[i : i + 100] for i in range(0, len(stream), 100)]
    assert [event.data for event in parse(pieces)] == [body]
