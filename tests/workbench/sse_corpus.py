"""Answers as servers really write them, byte for byte, and what each of their events is.

A file is a list of pieces. A piece either completes one event or, like a comment, none; where one ends and
the next begins is known here without any parser, so the corpus is an oracle for parsers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple


class Piece(NamedTuple):
    data: bytes
    kind: str | None
    """Kind of the event that it completes; None: it completes none."""
    tokens: int = 0
    at_close: bool = False
    """The event lacks its blank line: only the end of the stream completes it."""


@dataclass(frozen=True)
class Answer:
    """One file of the corpus."""

    pieces: tuple[Piece, ...]
    status: str = "ok"
    error_class: str | None = None
    source: str | None = "token_ids"

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    def events(self) -> list[tuple[int | None, str, int]]:
        """(bytes that must have come, kind, tokens) of each event; None bytes: the end of the stream."""
        out: list[tuple[int | None, str, int]] = []
        seen = 0
        for piece in self.pieces:
            seen += len(piece.data)
            if piece.kind is not None:
                # The CR of the last CRLF already ends the empty line.
                needed = seen - 1 if piece.data.endswith(b"\r\n") else seen
                out.append((None if piece.at_close else needed, piece.kind, piece.tokens))
        return out


def text(value: str, ids: int | None = 1, **choice: Any) -> dict[str, Any]:
    """An event of ``/v1/completions`` with ``ids`` token ids (None: the server sends none)."""
    more = {} if ids is None else {"token_ids": list(range(ids))}
    return {"choices": [{"index": 0, "text": value, "finish_reason": None, **more, **choice}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": completion}}


def event(body: Any, kind: str, tokens: int = 0, *, end: str = "\n", head: str = "data: ") -> Piece:
    said = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Piece(f"{head}{said}{end}{end}".encode(), kind, tokens)


def done(end: str = "\n") -> Piece:
    return event("[DONE]", "done", end=end)


def plain(end: str = "\n", head: str = "data: ") -> tuple[Piece, ...]:
    return (
        event(text("a", 1), "content", 1, end=end, head=head),
        event(text("b c", 2, finish_reason="length"), "content", 2, end=end, head=head),
        event(usage(3), "usage", end=end, head=head),
        event("[DONE]", "done", end=end, head=head),
    )


def _lines(*lines: str, kind: str, tokens: int) -> Piece:
    """One event whose data lies on several lines."""
    return Piece(("".join(f"data: {line}\n" for line in lines) + "\n").encode(), kind, tokens)


_COMMENT = Piece(b": keep-alive\n\n", None)

CORPUS: dict[str, Answer] = {
    "lf": Answer(plain()),
    "crlf": Answer(plain("\r\n")),
    "cr": Answer(plain("\r")),
    "no space after the colon": Answer(plain(head="data:")),
    "comments between": Answer((_COMMENT, plain()[0], _COMMENT, _COMMENT, *plain()[1:])),
    "event, id and retry fields": Answer(plain(head="event: message\nid: 7\nretry: 10\ndata: ")),
    "data on several lines": Answer(
        (
            _lines('{"choices":[{"index":0,', '"text":"a","token_ids":[1]}]}', kind="content", tokens=1),
            *plain()[1:],
        )
    ),
    "byte order mark": Answer((Piece(b"\xef\xbb\xbf", None), *plain())),
    "line separators inside the text": Answer(
        (event(text("a\u2028b\u2029c\u0085d\u001ee", 3), "content", 3), *plain()[1:])
    ),
    "four-byte characters": Answer(
        (event(text("🙂é汉", 2), "content", 2), event(text("👩‍👩‍👧", 4), "content", 4), *plain()[1:])
    ),
    "half a character held back": Answer(
        (event(text("", 1), "content", 1), event(text("é", 0), "content", 0), *plain()[1:])
    ),
    "role first": Answer(
        (
            event(delta(role="assistant", content=""), "role"),
            event(delta(content="a"), "content", 1),
            event(delta(content="b", finish="stop"), "content", 1),
            done(),
        ),
        source="chunks",
    ),
    "empty first": Answer((event(text("", None), "empty"), *plain())),
    "many tokens first": Answer((event(text("abcdefg", 7), "content", 7), *plain()[1:])),
    "reasoning, then content": Answer(
        (
            event(delta(reasoning_content="hm"), "reasoning", 1),
            event(delta(reasoning="so"), "reasoning", 1),
            event(delta(content="x", finish="stop"), "content", 1),
            event(usage(3), "usage"),
            done(),
        ),
        source="usage",
    ),
    "tool calls": Answer(
        (
            event(delta(role="assistant", content=None), "role"),
            event(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]), "tool", 1),
            event(delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]), "tool", 1),
            event(delta("tool_calls"), "empty"),
            done(),
        ),
        source="chunks",
    ),
    "usage in the last event": Answer(
        (
            event(text("a", None), "content", 1),
            event({**text("bcd", None, finish_reason="stop"), "usage": usage(4)["usage"]}, "content", 3),
            done(),
        ),
        source="usage",
    ),
    "usage in every event": Answer(
        (
            event({**text("a", None), "usage": usage(2)["usage"]}, "content", 2),
            event({**text("b", None, finish_reason="stop"), "usage": usage(7)["usage"]}, "content", 5),
            done(),
        ),
        source="usage",
    ),
    "final usage shared out by text": Answer(
        (
            event(text("a", None), "content", 1),
            event(text("bbb", None, finish_reason="length"), "content", 3),
            event(usage(4), "usage"),
            done(),
        ),
        source="usage",
    ),
    "no [DONE]": Answer(plain()[:3]),
    "no blank line at the end": Answer((*plain()[:3], Piece(b"data: [DONE]", "done", at_close=True))),
    "cut before its end": Answer((plain()[0],), "failed", "truncated"),
    "cut inside an event": Answer(
        (plain()[0], Piece(b'data: {"choices":[{"te', "error", at_close=True)), "failed", "truncated"
    ),
    "an error in the stream": Answer(
        (plain()[0], event({"error": {"message": "out of memory", "code": 500}}, "error")),
        "failed",
        "stream_error",
    ),
    "an error by the event's name": Answer(
        (plain()[0], event("out of memory", "error", head="event: error\ndata: ")), "failed", "stream_error"
    ),
    "an error as an object": Answer(
        (plain()[0], event({"object": "error", "message": "no"}, "error")), "failed", "stream_error"
    ),
    "no JSON": Answer((plain()[0], event("hello", "error")), "failed", "parse"),
    "no token": Answer(
        (event(text("", None, finish_reason="stop"), "empty"), done()), "failed", "empty", None
    ),
    "usage alone": Answer((event(usage(0), "usage"), done()), "failed", "empty", None),
    "nothing": Answer((), "failed", "truncated", None),
}
