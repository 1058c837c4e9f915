"""Sends one request and records what comes back. Every stamp is taken when bytes are handed over, before
they are parsed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from workbench.benchspec import Deadlines
from workbench.load import errors
from workbench.load.bodies import PreparedRequest
from workbench.load.errors import RequestError, http_class
from workbench.load.post import Post
from workbench.load.progress import LoadCounters
from workbench.load.record import RequestRecord
from workbench.load.sse import SseEvent, SseParser
from workbench.load.stream import StreamState
from workbench.load.wire import Wire

_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 2.0
_DRAIN_S = 1.0
"""How long to wait for the end of the body after ``[DONE]``, to keep the connection."""

DRAINED = "drained"
"""The answer was complete, only the connection stayed open: a success."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request under way; the runner's watchdog reads the stamps and cancels ``task`` with a reason."""

    record: RequestRecord
    request: PreparedRequest
    counters: LoadCounters = field(default_factory=LoadCounters)
    stream: StreamState = field(default_factory=StreamState)
    parser: SseParser = field(default_factory=SseParser)
    wire: Wire | None = None
    task: asyncio.Task[None] | None = None
    active_ns: int = 0
    """Last sign of life."""
    give_up: str | None = None
    """Error class with which it was cancelled."""
    reason: str = "given up by the client"
    failure: RequestError | None = None
    """What the watchdog found in the stream before it cancelled."""

    def catch_up(self) -> None:
        """Fold what has arrived since the last call.

        Raises:
            RequestError: the stream told an error, or holds no events of the API.
        """
        body = self.wire.body if self.wire is not None else None
        if body is None:
            return
        for received_ns, payload in body.reads():
            self.take(payload, received_ns)

    def take(self, payload: bytes, received_ns: int) -> None:
        """Fold the part of the body that arrived at ``received_ns``. Raises as :meth:`catch_up`."""
        self.active_ns = received_ns
        self.fold(self.parser.feed(payload), received_ns)

    def fold(self, events: list[SseEvent], received_ns: int) -> None:
        stream, counters = self.stream, self.counters
        for event in events:
            stream.feed(event, received_ns)
            counters.tokens += stream.chunks[-1].n_tokens or 0

    def overdue(self, now_ns: int, deadlines: Deadlines) -> str | None:
        """The deadline that has passed, as an error class."""
        if self.record.sent_ns is None:
            return None
        sent_s, idle_s = (now_ns - self.record.sent_ns) / 1e9, (now_ns - self.active_ns) / 1e9
        if self.stream.done:
            return DRAINED if idle_s > _DRAIN_S else None
        if _passed(sent_s, deadlines.total_s):
            return errors.TIMEOUT_TOTAL
        if self.stream.first_ns is None and _passed(sent_s, deadlines.first_token_s):
            return errors.TIMEOUT_FIRST_TOKEN
        if _passed(idle_s, deadlines.idle_s):
            return errors.TIMEOUT_IDLE
        return None


def _passed(waited_s: float, limit_s: float | None) -> bool:
    return limit_s is not None and waited_s > limit_s


async def fly(
    flight: Flight,
    body: bytes,
    post: Post,
    retries: int = 0,
) -> None:
    """Send ``body``, fold its stream, settle the record. Never raises: every outcome is in the record.

    With ``retries``, what failed before it brought anything, in a way that may pass, is sent again after
    a pause;
    latencies still begin with the first sending.
    """
    record, request = flight.record, flight.request
    record.attempts = 0
    while True:
        record.attempts += 1
        await _attempt(flight, body, post)
        if (
            record.attempts > retries
            or record.status != "failed"
            or record.error_class not in errors.PASSING
            or flight.stream.chunks
        ):
            break
        flight.counters.retries += 1
        try:
            await asyncio.sleep(min(_RETRY_MOST_S, _RETRY_FIRST_S * 2 ** (record.attempts - 1)))
        except asyncio.CancelledError:
            _fail(record, flight.give_up or errors.CANCELLED, "given up by the client before a further try")
            break
        record.error = record.error_class = record.http_status = record.headers_ns = None
    record.close_ns = time.monotonic_ns()
    settle(record, flight.stream, request.num_prompt_tokens)


async def _attempt(flight: Flight, body: bytes, post: Post) -> None:
    record, stream = flight.record, flight.stream
    try:
        await _exchange(flight, body, post)
        record.status = "ok"
    except RequestError as error:
        _fail(record, error.error_class, str(error))
    except asyncio.CancelledError:
        # Only this module's callers cancel a flight, and they say why.
        if flight.failure is not None:
            _fail(record, flight.failure.error_class, str(flight.failure))
        elif flight.give_up == DRAINED or stream.done:
            # The answer was complete; only the connection's own end was still to come.
            record.status = "ok"
        else:
            _fail(record, flight.give_up or errors.CANCELLED, flight.reason)
    except aiohttp.ClientConnectorError as error:
        _fail(record, errors.CONNECT, str(error))
    except aiohttp.ServerTimeoutError as error:
        _fail(record, errors.TIMEOUT_CONNECT, str(error) or "no connection in time")
    except (aiohttp.ClientError, ConnectionError) as error:
        if stream.terminated:
            record.status = "ok"
        else:
            kind = errors.DISCONNECTED if record.headers_ns is None else errors.TRUNCATED
            _fail(record, kind, f"{type(error).__name__}: {error}")
    except Exception as error:
        # A fault of ours must not take the other requests down; it makes the run invalid instead.
        _fail(record, errors.CLIENT, f"{type(error).__name__}: {error}")


async def _exchange(flight: Flight, body: bytes, post: Post) -> None:
    record, stream = flight.record, flight.stream
    flight.wire = wire = Wire()
    flight.active_ns = time.monotonic_ns()
    if record.sent_ns is None:
        record.sent_ns = flight.active_ns
    answer = await post.send(wire, record.request_id, body)
    try:
        flight.active_ns = record.headers_ns = wire.head_ns or wire.received_ns()
        record.http_status = answer.status
        if not 200 <= answer.status < 300:
            text = (await answer.content.read(2048)).decode("utf-8", "replace")
            where = f" (redirects are not followed: {answer.location})" if answer.location else ""
            raise RequestError(http_class(answer.status), f"HTTP {answer.status}{where}: {text[:300]}")
        if answer.content_type == "application/json":
            raise RequestError(errors.PARSE, "the answer is no event stream (Content-Type: application/json)")
        try:
            # An event stream of ours comes past this; what ends or breaks it does not.
            while read := await answer.content.readany():
                flight.catch_up()
                flight.take(read, wire.received_ns())
        finally:
            flight.catch_up()
        try:
            flight.fold(flight.parser.close(), flight.active_ns)
        except RequestError as error:
            if error.error_class == errors.PARSE:
                # Half an event at the very end: the connection was cut inside it.
                raise RequestError(errors.TRUNCATED, "the stream ends inside an event") from None
            raise
    finally:
        answer.close()
    if not stream.terminated:
        raise RequestError(errors.TRUNCATED, "the stream ended without [DONE] or a finish reason")


def _fail(record: RequestRecord, error_class: str, message: str) -> None:
    record.status = "cancelled" if error_class == errors.CANCELLED else "failed"
    record.error_class = error_class
    record.error = message


def settle(record: RequestRecord, stream: StreamState, num_prompt_tokens: int | None) -> None:
    """Derive the record's token columns from its stream."""
    total, source = stream.resolve()
    record.chunks = stream.chunks
    record.finish_reason = stream.finish_reason
    record.output_tokens, record.output_tokens_source = total, source
    carrying = [c for c in stream.chunks if c.n_tokens]
    if carrying:
        record.first_token_ns, record.last_token_ns = carrying[0].recv_ns, carrying[-1].recv_ns
        record.first_event_tokens = carrying[0].n_tokens
        record.output_sha256 = stream.sha256()
    elif record.status == "ok":
        _fail(record, errors.EMPTY, "the answer holds no token")
    usage = stream.usage
    record.prompt_tokens = num_prompt_tokens
    if usage is not None:
        if usage.prompt_tokens is not None:
            record.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens
