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
from workbench.load.progress import LoadCounters
from workbench.load.record import RequestRecord
from workbench.load.sse import SseEvent, SseParser
from workbench.load.stream import StreamState
from workbench.load.wire import new_wire

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
    stream: StreamState = field(default_factory=StreamState)
    task: asyncio.Task[None] | None = None
    active_ns: int = 0
    """Last sign of life."""
    give_up: str | None = None
    """Error class with which it was cancelled."""
    reason: str = "given up by the client"

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
    session: aiohttp.ClientSession,
    url: str,
    counters: LoadCounters,
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
        await _attempt(flight, body, session, url, counters)
        if (
            record.attempts > retries
            or record.status != "failed"
            or record.error_class not in errors.PASSING
            or flight.stream.chunks
        ):
            break
        counters.retries += 1
        try:
            await asyncio.sleep(min(_RETRY_MOST_S, _RETRY_FIRST_S * 2 ** (record.attempts - 1)))
        except asyncio.CancelledError:
            _fail(record, flight.give_up or errors.CANCELLED, "given up by the client before a further try")
            break
        record.error = record.error_class = record.http_status = record.headers_ns = None
    record.close_ns = time.monotonic_ns()
    settle(record, flight.stream, request.num_prompt_tokens)


async def _attempt(
    flight: Flight, body: bytes, session: aiohttp.ClientSession, url: str, counters: LoadCounters
) -> None:
    record, stream = flight.record, flight.stream
    try:
        await _exchange(flight, body, session, url, counters)
        record.status = "ok"
    except RequestError as error:
        _fail(record, error.error_class, str(error))
    except asyncio.CancelledError:
        # Only this module's callers cancel a flight, and they say why.
        if flight.give_up == DRAINED or stream.done:
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


async def _exchange(
    flight: Flight, body: bytes, session: aiohttp.ClientSession, url: str, counters: LoadCounters
) -> None:
    record, stream = flight.record, flight.stream
    headers = {"X-Request-Id": record.request_id}
    wire = new_wire()
    flight.active_ns = time.monotonic_ns()
    if record.sent_ns is None:
        record.sent_ns = flight.active_ns
    async with session.post(url, data=body, headers=headers) as response:
        flight.active_ns = record.headers_ns = wire.received_ns()
        record.http_status = response.status
        if not 200 <= response.status < 300:
            text = (await response.content.read(2048)).decode("utf-8", "replace")
            raise RequestError(http_class(response.status), f"HTTP {response.status}: {text[:300]}")
        if response.content_type == "application/json":
            raise RequestError(errors.PARSE, "the answer is no event stream (Content-Type: application/json)")
        parser = SseParser()
        content = response.content
        while True:
            read = await content.readany()
            flight.active_ns = now_ns = wire.received_ns()
            if not read:
                break
            _take(stream, parser.feed(read), now_ns, counters)
        try:
            _take(stream, parser.close(), now_ns, counters)
        except RequestError as error:
            if error.error_class == errors.PARSE:
                # Half an event at the very end: the connection was cut inside it.
                raise RequestError(errors.TRUNCATED, "the stream ends inside an event") from None
            raise
    if not stream.terminated:
        raise RequestError(errors.TRUNCATED, "the stream ended without [DONE] or a finish reason")


def _take(stream: StreamState, events: list[SseEvent], now_ns: int, counters: LoadCounters) -> None:
    for event in events:
        stream.feed(event, now_ns)
        counters.tokens += stream.chunks[-1].n_tokens or 0


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
