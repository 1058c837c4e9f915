"""Server-sent events, serialised by hand: what doesn't change in a stream is encoded once, each event is one
write.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Protocol

import msgspec
from aiohttp import web

from engine.frontend.outputs import RequestOutput
from engine.server.errors import to_api_error
from engine.server.usage import Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class ChunkEncoder:
    """Turns choices into the events of one stream.

    Args:
        head: the fields that every chunk repeats: id, object, created, model.
        include_usage: send the usage at the end, and null in every chunk before.
        continuous_usage: send the usage so far in every chunk.
    """

    __slots__ = ("_continuous", "_include_usage", "_prefix", "_suffix", "usage")

    def __init__(self, head: dict[str, Any], include_usage: bool, continuous_usage: bool) -> None:
        self._prefix = b"data: " + _encode(head)[:-1]
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self.usage = Usage()

    @property
    def continuous_usage(self) -> bool:
        return self._continuous

    def chunk(self, choice: bytes, extra: bytes = b"") -> bytes:
        """One event with one choice (JSON). ``extra``: more top-level members, each with a leading comma."""
        if self._continuous:
            return b'%b%b,"choices":[%b],"usage":%b}\n\n' % (
                self._prefix,
                extra,
                choice,
                _encode(self.usage.as_dict()),
            )
        return b'%b%b,"choices":[%b%b' % (self._prefix, extra, choice, self._suffix)

    def end(self) -> bytes:
        """The usage event, if asked for (its choices are empty), and the terminator."""
        if not self._include_usage:
            return DONE
        usage = _encode(self.usage.as_dict())
        return b'%b,"choices":[],"usage":%b}\n\n%b' % (self._prefix, usage, DONE)


class StreamFormat(Protocol):
    """What completions and chat do differently."""

    encoder: ChunkEncoder

    def events(self, prompt_index: int, output: RequestOutput) -> bytes:
        """The events that ``output`` is worth, maybe none."""
        ...


async def stream_events(
    request: web.Request,
    outputs: AsyncGenerator[tuple[int, RequestOutput], None],
    stream_format: StreamFormat,
) -> web.StreamResponse:
    """Answer ``request`` with a stream.

    Headers go out with the first output: a request that is refused, or that fails before it, gets a plain
    HTTP error. Later failures become an error event, after which the stream ends without ``[DONE]``.
    """
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    async with aclosing(outputs):
        try:
            async for index, output in outputs:
                stream_format.encoder.usage.add(index, output)
                data = stream_format.events(index, output)
                if not response.prepared:
                    await response.prepare(request)
                if data:
                    await response.write(data)
            await response.write(stream_format.encoder.end())
        except ConnectionError:
            return response  # the client has gone; leaving closes ``outputs``, which aborts the request
        except Exception as error:
            if not response.prepared:
                raise
            with suppress(ConnectionError):
                await response.write(b"data: " + to_api_error(error).body() + b"\n\n")
    with suppress(ConnectionError):  # gone between the last event and the end: nothing was lost
        await response.write_eof()
    return response
