"""Errors as HTTP sees them: the OpenAI error object ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web

from engine.errors import EngineDeadError, InvalidInputError, QueueFullError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""Told to refused clients: a step takes milliseconds, so a second is a fair guess for a place in the
queue.
"""


class ApiError(Exception):
    """An answer other than 2xx: one clear line, and the parameter it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> bytes:
        """The error object as JSON bytes."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=self.headers
        )


def bad_request(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A 400 about ``param``."""
    return ApiError(400, message, param=param, code=code)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")


def engine_dead(reason: object = None) -> ApiError:
    detail = f": {reason}" if reason else ""
    return ApiError(500, f"the engine died{detail}", kind="server_error", code="engine_dead")


def to_api_error(error: BaseException) -> ApiError:
    """The answer for any exception; what is not foreseen is logged and becomes a bare 500."""
    match error:
        case ApiError():
            return error
        case InvalidInputError():
            return bad_request(error.field, str(error))
        case QueueFullError():
            return ApiError(
                429,
                str(error),
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        case EngineDeadError():
            return engine_dead(error)
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, "the request body is too large", code="body_too_large")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                405, f"method {error.method} is not allowed here: use {allowed}", headers={"Allow": allowed}
            )
        case web.HTTPNotFound():
            return ApiError(404, "no such path", code="not_found")
        case web.HTTPException():
            return ApiError(error.status, error.reason or "request refused")
    logger.error("unexpected error in a request handler", exc_info=error)
    return ApiError(500, "internal error: see the server's log", kind="server_error", code="internal")
