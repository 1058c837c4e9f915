"""HTTP's chunked framing (RFC 9112, section 7.1), incrementally: any split of the same bytes gives the same
payload.
"""

from __future__ import annotations

_LINE_MOST = 8190
_HEX = frozenset(b"0123456789abcdefABCDEF")


class ChunkedDecoder:
    """Feed it reads as they come; it returns the payload that each read brought, complete chunk or not."""

    __slots__ = ("_carry", "_ending", "_last", "_left", "done", "rest")

    def __init__(self) -> None:
        self._carry = b""  # of an unfinished line between chunks
        self._left = 0  # bytes of the current chunk that are still to come
        self._ending = False  # the chunk is complete, its line break is not
        self._last = False  # the chunk of size 0 was there: trailers follow
        self.done = False
        self.rest = b""
        """What came after the end of the message, or from where on it is malformed."""

    def feed(self, read: bytes) -> bytes:
        """Payload in ``read``.

        Raises:
            ValueError: no chunked framing. ``rest`` holds the bytes from there on; the payload before them
                is lost.
        """
        data, at = self._carry + read if self._carry else read, 0
        pieces: list[bytes] = []
        while True:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._ending = True
            edge = data.find(b"\r\n", at)
            if edge < 0:
                if len(data) - at > _LINE_MOST:
                    raise self._malformed(data, at)
                break
            if self._ending:
                if edge != at:
                    raise self._malformed(data, at)
                self._ending = False
            elif self._last:
                if edge == at:
                    self.done, self.rest = True, data[edge + 2 :]
                    return b"".join(pieces)
            else:
                self._left = self._size(data, at, edge)
                self._last = self._left == 0
            at = edge + 2
        self._carry = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _size(self, data: bytes, at: int, edge: int) -> int:
        digits = data[at:edge]
        if b";" in digits:
            digits = digits.partition(b";")[0].rstrip()
        if not digits or not _HEX.issuperset(digits):
            raise self._malformed(data, at)
        return int(digits, 16)

    def _malformed(self, data: bytes, at: int) -> ValueError:
        self.rest = data[at:]
        return ValueError(f"no chunked framing: {data[at : at + 40]!r}")
