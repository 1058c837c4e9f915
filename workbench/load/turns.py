"""Conversations while they run: what was said so far, and which turn comes next and when."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from workbench.load.bodies import PreparedRequest, assistant_item
from workbench.load.client import Flight


class Turns:
    """Turns that wait for the one before them. Requests without a session pass through untouched."""

    def __init__(self, requests: Iterable[PreparedRequest]) -> None:
        self._later: dict[tuple[int, int], PreparedRequest] = {}
        self._history: dict[int, list[bytes]] = {}
        for request in requests:
            if request.turn is not None and request.turn.number > 0:
                self._later[request.turn.session, request.turn.number] = request

    def body(self, request: PreparedRequest) -> bytes:
        """The bytes to send: the turn's own with everything said before it in front."""
        turn = request.turn
        history = self._history.get(turn.session) if turn is not None else None
        if turn is None or not history:
            return request.body
        before = b"".join(item + b"," for item in history if item)
        return request.body[: turn.history_at] + before + request.body[turn.history_at :]

    def after(self, flight: Flight) -> PreparedRequest | None:
        """The turn that follows ``flight``, which has succeeded; None when the session ends with it."""
        turn = flight.request.turn
        if turn is None:
            return None
        following = self._later.pop((turn.session, turn.number + 1), None)
        if following is None:
            self._history.pop(turn.session, None)
            return None
        reply = _reply(flight) if turn.keep_reply else None
        self._history.setdefault(turn.session, []).extend((turn.said, reply or turn.scripted))
        return following

    def drop(self, request: PreparedRequest) -> list[PreparedRequest]:
        """Later turns of a session that ended with the failure of ``request``."""
        turn, dropped = request.turn, []
        if turn is not None:
            self._history.pop(turn.session, None)
            number = turn.number + 1
            while (following := self._later.pop((turn.session, number), None)) is not None:
                dropped.append(following)
                number += 1
        return dropped


def _reply(flight: Flight) -> bytes | None:
    """The server's answer as items of the next prompt; None when it can't be told (no token ids)."""
    stream = flight.stream
    if flight.request.body.startswith(b'{"messages"'):
        return assistant_item("".join(stream.text))
    return msgspec.json.encode(stream.token_ids)[1:-1] if stream.token_ids else None
