"""A scripted OpenAI-compatible server that tells the truth about itself: the oracle of the load generator's
tests.

Every request follows a :class:`Script` (the server's own, or the ``mock`` object in the request's body).
What happened is recorded on
the client's clock (``CLOCK_MONOTONIC``): when the request arrived, and when each event was handed to the
socket. :mod:`workbench.mock_listener` serves it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import InvalidInputError
from workbench.mock_listener import Receipts, listen

_ARRIVED_NS = web.RequestKey("arrived_ns", int)


class Script(BaseModel):
    """How one request is answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft_ms: float = Field(default=0.0, ge=0)
    """Delay before the first event with a token."""
    itl_ms: float = Field(default=0.0, ge=0)
    """Delay between events."""
    output_tokens: int | None = Field(default=None, ge=0)
    """Default: the request's max_tokens."""
    tokens_per_event: int = Field(default=1, ge=1)
    split: int | None = Field(default=None, ge=1)
    """Write events in pieces of this many bytes."""
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    role_event: bool = True
    """Chat: begin with an event that only has a role."""
    role_delay_ms: float = Field(default=0.0, ge=0)
    """Delay before that event."""
    usage: bool = True
    """Honour ``stream_options.include_usage``."""
    usage_delay_ms: float = Field(default=0.0, ge=0)
    token_ids: bool = True
    """Honour ``return_token_ids``; False: ignore it."""
    refuse: tuple[str, ...] = ()
    """Body fields that are answered with HTTP 400, as strict servers do."""
    done: bool = True
    """End with ``[DONE]``."""
    finish_reason: bool = True
    status: int = Field(default=200, ge=200, le=599)
    error_after: int | None = Field(default=None, ge=0)
    """Send an error object instead of this event (counted from 0)."""
    cut_after: int | None = Field(default=None, ge=0)
    """Close the connection instead of sending this event."""
    hang_after: int | None = Field(default=None, ge=0)
    """Say nothing any more instead of sending this event."""
    raw: str | None = None
    """The whole body of the answer, as is."""
    cuts: tuple[int, ...] = ()
    """``raw``: written in pieces that end at these bytes (ascending), and recorded per piece."""
    cut_pause_ms: float = Field(default=0.0, ge=0)
    """``raw``: pause between two pieces."""


@dataclass(slots=True)
class Arrival:
    """What the server saw and did for one request."""

    request_id: str
    arrived_ns: int
    """When its first bytes were read from the socket."""
    prompt_tokens: int
    sent_ns: list[int] = field(default_factory=list)
    """Just before each event with tokens (``raw``: each piece) was written."""
    written_ns: list[int] = field(default_factory=list)
    """Just after."""
    outcome: str = "open"
    """ok | status | error | cut | gone (the client left)"""
    body: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "arrived_ns": self.arrived_ns,
            "prompt_tokens": self.prompt_tokens,
            "sent_ns": self.sent_ns,
            "written_ns": self.written_ns,
            "outcome": self.outcome,
        }


class MockServer:
    """The application and its log. ``slots`` requests are served at a time, the others wait in order (None:
    no limit)."""

    def __init__(
        self,
        script: Script | Callable[[dict[str, Any]], Script] | None = None,
        *,
        slots: int | None = None,
        model: str = "mock",
        info: dict[str, Any] | None = None,
    ) -> None:
        self._script = script or Script()
        self._slots = asyncio.Semaphore(slots) if slots is not None else None
        self.model = model
        self._info = info
        self.arrivals: list[Arrival] = []
        self.receipts = Receipts()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28, middlewares=[self._stamped])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/server_info", self._server_info),
                web.get("/mock/log", self._log),
                web.post("/v1/completions", self._generate),
                web.post("/v1/chat/completions", self._generate),
            ]
        )
        return app

    @web.middleware
    async def _stamped(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        handled_ns = time.monotonic_ns()
        await request.read()  # the next bytes on this connection are another request's
        request[_ARRIVED_NS] = self.receipts.take(request.transport) or handled_ns
        return await handler(request)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _server_info(self, _request: web.Request) -> web.Response:
        if self._info is None:
            raise web.HTTPNotFound
        return web.json_response(self._info)

    async def _log(self, _request: web.Request) -> web.Response:
        return web.json_response({"arrivals": [arrival.row() for arrival in self.arrivals]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        arrival = Arrival(
            request.headers.get("X-Request-Id", ""), request[_ARRIVED_NS], _prompt_tokens(body), body=body
        )
        self.arrivals.append(arrival)
        try:
            script = self._script_for(body)
        except ValidationError as error:
            return _error(400, str(error.errors()[0]["msg"]), arrival)
        for name in script.refuse:
            if name in body:
                return _error(400, f"Unrecognized request argument supplied: {name}", arrival)
        if script.status != 200:
            return _error(script.status, "as scripted", arrival)
        try:
            if self._slots is None:
                return await _Answer(script, request, body, arrival).send()
            async with self._slots:
                return await _Answer(script, request, body, arrival).send()
        except ConnectionError:
            arrival.outcome = "gone"
            return web.Response(status=499)  # to nobody: the client has hung up
        except asyncio.CancelledError:
            arrival.outcome = "gone"
            raise

    def _script_for(self, body: dict[str, Any]) -> Script:
        own = self._script(body) if callable(self._script) else self._script
        override = body.get("mock")
        return Script.model_validate({**own.model_dump(), **override}) if isinstance(override, dict) else own


class _Answer:
    """One streamed answer in the making."""

    def __init__(self, script: Script, request: web.Request, body: dict[str, Any], arrival: Arrival) -> None:
        self._script = script
        self._request = request
        self._body = body
        self._arrival = arrival
        # Service begins here: a request that waited for a slot still takes its whole time.
        self._started_ns = time.monotonic_ns()
        self._chat = request.path.endswith("/chat/completions")
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def send(self) -> web.StreamResponse:
        script, response = self._script, self._response
        await response.prepare(self._request)
        if script.raw is not None:
            await self._pieces(script.raw.encode(), script)
            return await self._end()
        if self._chat and script.role_event:
            await asyncio.sleep(script.role_delay_ms / 1e3)
            await self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        total = (
            script.output_tokens
            if script.output_tokens is not None
            else int(self._body.get("max_tokens", 16))
        )
        # Absolute times: the script's delays do not grow by what writing costs.
        due_ns = self._started_ns + int(script.ttft_ms * 1e6)
        for number, first in enumerate(range(0, total, script.tokens_per_event)):
            await _until(due_ns)
            if script.cut_after == number:
                return self._cut()
            if script.hang_after == number:
                await asyncio.sleep(3600)
            if script.error_after == number:
                self._arrival.outcome = "error"
                await self._event({"error": {"message": "as scripted", "code": 500}})
                return response
            await self._tokens(list(range(first, min(first + script.tokens_per_event, total))), total)
            due_ns += int(script.itl_ms * 1e6)
        if script.usage and (self._body.get("stream_options") or {}).get("include_usage"):
            await asyncio.sleep(script.usage_delay_ms / 1e3)
            prompt = self._arrival.prompt_tokens
            usage = {"prompt_tokens": prompt, "completion_tokens": total, "total_tokens": prompt + total}
            await self._event(
                {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}}
            )
        if script.done:
            await self._data("[DONE]")
        return await self._end()

    async def _pieces(self, data: bytes, script: Script) -> None:
        """``data`` as is, in the pieces that the script asks for."""
        start = 0
        for end in (*script.cuts, len(data)):
            if start and script.cut_pause_ms:
                await asyncio.sleep(script.cut_pause_ms / 1e3)
            if piece := data[start:end]:
                self._arrival.sent_ns.append(time.monotonic_ns())
                await self._write(piece)
                self._arrival.written_ns.append(time.monotonic_ns())
            start = max(start, end)

    async def _tokens(self, ids: list[int], total: int) -> None:
        text = "".join(f" t{i}" for i in ids)
        choice: dict[str, Any] = (
            {"index": 0, "delta": {"content": text}} if self._chat else {"index": 0, "text": text}
        )
        choice["finish_reason"] = "length" if self._script.finish_reason and ids[-1] == total - 1 else None
        if self._script.token_ids and self._body.get("return_token_ids"):
            choice["token_ids"] = ids
        self._arrival.sent_ns.append(time.monotonic_ns())
        await self._event({"choices": [choice]})
        self._arrival.written_ns.append(time.monotonic_ns())

    async def _event(self, value: dict[str, Any]) -> None:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = {} if "error" in value else {"id": "mock", "object": kind, "model": self._body.get("model")}
        await self._data(json.dumps({**head, **value}))

    async def _data(self, text: str) -> None:
        await self._write(f"data: {text}{self._script.newline * 2}".encode())

    async def _write(self, data: bytes) -> None:
        size = self._script.split or len(data) or 1
        for start in range(0, len(data), size):
            await self._response.write(data[start : start + size])
            if self._script.split:
                await asyncio.sleep(0)  # let the piece leave by itself

    async def _end(self) -> web.StreamResponse:
        self._arrival.outcome = "ok"
        await self._response.write_eof()
        return self._response

    def _cut(self) -> web.StreamResponse:
        self._arrival.outcome = "cut"
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response


async def _until(due_ns: int) -> None:
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left_ns / 1e9 if left_ns > 1_000_000 else 0)


def _error(status: int, message: str, arrival: Arrival) -> web.Response:
    arrival.outcome = "status"
    headers = {"Retry-After": "1"} if status == 429 else None
    return web.json_response({"error": {"message": message, "code": status}}, status=status, headers=headers)


def _prompt_tokens(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.split())
    return sum(len(str(m.get("content", "")).split()) for m in body.get("messages") or [])


def parse_script(text: str) -> Script:
    """A script from JSON.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return Script.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "script"
        raise InvalidInputError(where, first.get("input"), first["msg"]) from None


async def serve(server: MockServer, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; ``ready`` gets the base URL once it listens.

    Raises:
        InvalidInputError: the address can't be listened on.
    """
    await listen(server.app(), server.receipts, host, port, ready)
