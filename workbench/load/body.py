"""The body of a streamed answer, taken where the socket hands it over: a stamp and an append, no more.

Everything that can wait does: framing, events and JSON are read when the message ends or the runner's
watchdog comes by. So a burst of events from hundreds of streams does not stand between a request and its
sending.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.load.chunked import ChunkedDecoder

_END = b"0\r\n\r\n"
_BLANK = b"\r\n\r\n"


def is_ours(head: bytes) -> bool:
    """Whether the answer with this head is a plain chunked event stream; all else is left to aiohttp."""
    lower = head.lower()
    return (
        lower.startswith(b"http/1.1 200")
        and b"\r\ntransfer-encoding: chunked\r\n" in lower
        and b"\r\ncontent-type: text/event-stream" in lower
        and b"\r\ncontent-encoding:" not in lower
    )


class StreamBody:
    """Reads of one body with the times of their arrival.

    Args:
        hand_over: gives bytes to aiohttp's own parser, which saw the head only. It is told the end of the
            message, and gets what is no chunked framing as it is: such an answer is its to judge.
    """

    __slots__ = ("_decoder", "_hand_over", "_ready", "_tail", "_taken", "open")

    def __init__(self, hand_over: Callable[[bytes], None]) -> None:
        self._hand_over = hand_over
        self._decoder = ChunkedDecoder()
        self._taken: list[tuple[int, bytes]] = []
        self._ready: list[tuple[int, bytes]] = []
        self._tail = b""
        self.open = True
        """It wants the bytes that come next."""

    def take(self, received_ns: int, data: bytes) -> None:
        """Keep ``data``, which arrived at ``received_ns``."""
        self._taken.append((received_ns, data))
        tail = data[-4:]
        if len(tail) < 4:
            tail = (self._tail + tail)[-4:]
        self._tail = tail
        if tail == _BLANK:  # every chunked message ends so, few other reads do
            self._decode()

    def reads(self) -> list[tuple[int, bytes]]:
        """(arrival in ns, payload) of each read since the last call."""
        self._decode()
        ready, self._ready = self._ready, []
        return ready

    def _decode(self) -> None:
        taken, self._taken = self._taken, []
        decoder = self._decoder
        for number, (received_ns, data) in enumerate(taken):
            try:
                payload = decoder.feed(data)
            except ValueError:
                self._give_back(decoder.rest + b"".join(data for _, data in taken[number + 1 :]))
                return
            if payload:
                self._ready.append((received_ns, payload))
            if decoder.done:
                self._give_back(_END + decoder.rest + b"".join(data for _, data in taken[number + 1 :]))
                return

    def _give_back(self, data: bytes) -> None:
        self.open = False
        self._hand_over(data)
