"""Classes of failed requests, and the exception that carries one."""

from __future__ import annotations

CONNECT = "connect"  # no connection: refused, unresolved, TLS
DISCONNECTED = "disconnected"  # the server closed before it answered
TIMEOUT_CONNECT = "timeout_connect"
TIMEOUT_FIRST_TOKEN = "timeout_first_token"
TIMEOUT_IDLE = "timeout_idle"
TIMEOUT_TOTAL = "timeout_total"
HTTP_4XX = "http_4xx"
HTTP_429 = "http_429"
HTTP_5XX = "http_5xx"
HTTP_OTHER = "http_other"
STREAM_ERROR = "stream_error"  # an error object inside a 200 stream
TRUNCATED = "truncated"  # the stream ended without [DONE] or a finish reason
EMPTY = "empty"  # it ended well, but brought no token
PARSE = "parse"  # an event that is not what the API promises
CANCELLED = "cancelled"  # by us: end of the run, Ctrl-C
CLIENT = "client"  # a fault of the load generator itself

PASSING = frozenset({CONNECT, DISCONNECTED, TIMEOUT_CONNECT, HTTP_429, HTTP_5XX})
"""What may go well at a second try."""


class RequestError(Exception):
    """A request failed with class ``error_class``."""

    def __init__(self, error_class: str, message: str) -> None:
        self.error_class = error_class
        super().__init__(message)


def http_class(status: int) -> str:
    if status == 429:
        return HTTP_429
    if 400 <= status < 500:
        return HTTP_4XX
    return HTTP_5XX if 500 <= status < 600 else HTTP_OTHER
