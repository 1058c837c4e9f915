"""One streamed answer: what each event is, how many tokens it brought, and from where that is known."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

import msgspec

from workbench.load.errors import PARSE, STREAM_ERROR, RequestError
from workbench.load.sse import SseEvent

COUNTED = frozenset({"content", "reasoning", "tool"})
"""Kinds that can hold generated tokens."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Chunk(msgspec.Struct):
    """One row of ``chunks.parquet``; ``n_tokens`` is None until :meth:`StreamState.resolve`."""

    recv_ns: int
    kind: str
    n_tokens: int | None
    source: str | None
    weight: int
    """Bytes of text, to share out a total that only the end tells."""


class StreamState:
    """Fold of a stream's events. Cheap per event; what can wait, waits for :meth:`resolve`."""

    __slots__ = (
        "_any_ids",
        "_seen",
        "chunks",
        "done",
        "finish_reason",
        "first_ns",
        "last_ns",
        "text",
        "token_ids",
        "usage",
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.done = False
        self.finish_reason: str | None = None
        self.first_ns: int | None = None
        """First event that may hold a token (deadlines and progress; the metric comes from
        :meth:`resolve`)."""
        self.last_ns: int | None = None
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.usage: _Usage | None = None
        self._seen = 0  # completion tokens told by usage so far
        self._any_ids = False

    @property
    def terminated(self) -> bool:
        return self.done or self.finish_reason is not None

    def feed(self, event: SseEvent, recv_ns: int) -> None:
        """Take one event that arrived at ``recv_ns``.

        Raises:
            RequestError: the event is an error object, or no JSON of the API.
        """
        if event.data == b"[DONE]":
            self.done = True
            self.chunks.append(Chunk(recv_ns, "done", 0, None, 0))
            return
        try:
            body = _decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.chunks.append(Chunk(recv_ns, "error", 0, None, 0))
            shown = event.data[:80].decode("utf-8", "replace")
            raise RequestError(
                STREAM_ERROR if event.name == b"error" else PARSE, f"{error}: {shown!r}"
            ) from None
        if body.error is not None or body.object == "error" or event.name == b"error":
            self.chunks.append(Chunk(recv_ns, "error", 0, None, 0))
            raise RequestError(STREAM_ERROR, _message(body))
        self._body(body, recv_ns)

    def _body(self, body: _Chunk, recv_ns: int) -> None:
        kind, ids, weight = "empty", 0, 0
        for choice in body.choices or ():
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            part, text = _content(choice)
            if text:
                self.text.append(text)
                weight += len(text)
            if choice.token_ids is not None:
                self._any_ids = True
                ids += len(choice.token_ids)
                self.token_ids.extend(choice.token_ids)
                if choice.token_ids and part in ("empty", "role"):
                    # Tokens whose text the detokeniser holds back (half a character, a possible stop string).
                    part = "content"
            if kind == "empty" or part in COUNTED:
                kind = part
        count: int | None = ids if self._any_ids else None
        source = "token_ids" if self._any_ids else None
        if body.usage is not None:
            self.usage = body.usage
            total = body.usage.completion_tokens
            if kind in COUNTED and count is None and total is not None:
                count, source = max(0, total - self._seen), "usage"
            if total is not None:
                self._seen = total
            if not body.choices:
                kind = "usage"
        if kind not in COUNTED:
            count, source = 0, None
        elif count != 0:
            if self.first_ns is None:
                self.first_ns = recv_ns
            self.last_ns = recv_ns
        self.chunks.append(Chunk(recv_ns, kind, count, source, weight))

    def resolve(self) -> tuple[int, str | None]:
        """Settle the token count of every event; returns (output tokens, their source).

        Sources in order: token ids in the events; usage in the events; the final usage, shared out over the
        events by their text; one token an event.
        """
        counted = [c for c in self.chunks if c.kind in COUNTED]
        if not counted:
            return 0, None
        if self._any_ids:
            for chunk in counted:
                if chunk.n_tokens is None:  # came before the first event with ids
                    chunk.n_tokens, chunk.source = 0, "token_ids"
            return len(self.token_ids), "token_ids"
        if all(c.source == "usage" for c in counted):
            return sum(c.n_tokens or 0 for c in counted), "usage"
        total = self.usage.completion_tokens if self.usage is not None else None
        if total is None:
            for chunk in counted:
                chunk.n_tokens, chunk.source = 1, "chunks"
            return len(counted), "chunks"
        for chunk, share in zip(counted, _share(total, [c.weight for c in counted]), strict=True):
            chunk.n_tokens, chunk.source = share, "usage"
        return total, "usage"

    def sha256(self) -> str:
        """Of the token ids (32-bit little-endian) when the server sent them, else of the text."""
        if self._any_ids:
            ids = array("i", self.token_ids)
            return hashlib.sha256(ids.tobytes()).hexdigest()
        return hashlib.sha256("".join(self.text).encode("utf-8", "surrogatepass")).hexdigest()


def _share(total: int, weights: list[int]) -> list[int]:
    """Split ``total`` into whole parts along ``weights``: one each while it lasts, the rest by running
    rounding."""
    count = len(weights)
    if total <= count:
        return [1] * total + [0] * (count - total)
    spare, mass = total - count, sum(weights)
    parts, run, given = [], 0, 0
    for i, weight in enumerate(weights):
        run += weight
        upto = round(spare * run / mass) if mass else round(spare * (i + 1) / count)
        parts.append(1 + upto - given)
        given = upto
    return parts


def _content(choice: _Choice) -> tuple[str, str]:
    """(kind, text) of one choice."""
    if choice.text:
        return "content", choice.text
    delta = choice.delta
    if delta is None:
        return "empty", ""
    if delta.content:
        return "content", delta.content
    reasoning = delta.reasoning_content or delta.reasoning
    if reasoning:
        return "reasoning", reasoning
    for call in delta.tool_calls or ():
        if call.function is not None and (call.function.arguments or call.function.name):
            return "tool", call.function.arguments or call.function.name or ""
    return ("role" if delta.role else "empty"), ""


def _message(body: _Chunk) -> str:
    error = body.error
    if isinstance(error, dict):
        error = error.get("message") or error
    return str(error if error is not None else body.message)[:300]
