"""From the bytes of a body to a struct, or to one clear 400."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from engine.server.errors import ApiError, bad_request
from engine.server.fields import select_fields

BODY_TIMEOUT_S = 60.0
"""A client that stops in the middle of its body is not waited for any longer."""

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]+)`")


async def read_struct(request: web.Request, struct_type: type[T]) -> T:
    """Read and check a JSON body.

    Raises:
        ApiError: 400 (malformed, wrong type, unknown field), 408, 413 or 415.
    """
    if request.content_type != "application/json":
        raise ApiError(
            415, f"content-type {request.content_type}: send application/json", code="unsupported_media_type"
        )
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            415, f"content-encoding {encoding!r:.80}: send the body as it is", code="unsupported_encoding"
        )
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await request.read()
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise bad_request(
            None, f"the body can't be read: {' '.join(str(error).split())}", code="invalid_body"
        ) from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s", code="timeout") from None
    return decode(raw, struct_type)


def decode(raw: bytes, struct_type: type[T]) -> T:
    """``raw`` as ``struct_type``; raises a 400 :class:`ApiError` that names the parameter."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(None, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request(None, "the body must be a JSON object", code="invalid_json")
    selected = select_fields(body, struct_type.__name__, frozenset(struct_type.__struct_fields__))
    try:
        return msgspec.convert(selected, struct_type, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), selected) from None


def _explain(message: str, body: dict[str, Any]) -> ApiError:
    """msgspec's message, turned round so that it starts with field and value."""
    if missing := _MISSING.match(message):
        return bad_request(missing["name"], f"{missing['name']}: required", code="missing_required_parameter")
    path = ""
    if at := _AT.search(message):
        path = at["path"].lstrip(".")
        message = message[: at.start()]
    if unknown := _UNKNOWN.match(message):
        name = f"{path}.{unknown['name']}" if path else unknown["name"]
        return bad_request(name, f"{name}: unknown field", code="unknown_parameter")
    param = path or None
    top = re.split(r"[.\[]", path, maxsplit=1)[0]
    shown = repr(body.get(top))
    if len(shown) > 100:
        shown = shown[:97] + "..."
    return bad_request(param, f"{top}={shown}: {message}" + (f" at {path}" if path != top else ""))
