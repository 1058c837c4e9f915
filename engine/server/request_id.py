"""The user's name for a request: header ``X-Request-Id``, or one that is made up here."""

from __future__ import annotations

import uuid

from aiohttp import web

from engine.server.errors import bad_request

HEADER = "X-Request-Id"
MAX_LENGTH = 256
_KEY: web.RequestKey[str] = web.RequestKey("request_id", str)


def assign_request_id(request: web.Request) -> str:
    """Take the client's id or make one, and remember it with the request.

    Raises:
        ApiError: 400 when the header is too long or not printable ASCII (it is echoed and stored).
    """
    given = request.headers.get(HEADER)
    if given is None:
        given = uuid.uuid4().hex
    request[_KEY] = given if given.isascii() and given.isprintable() else ""
    if not request[_KEY] or len(given) > MAX_LENGTH:
        request[_KEY] = uuid.uuid4().hex
        raise bad_request(HEADER, f"{HEADER}: 1 to {MAX_LENGTH} printable ASCII characters")
    return given


def request_id_of(request: web.Request) -> str:
    """The id that :func:`assign_request_id` gave."""
    return request[_KEY]
