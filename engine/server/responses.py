"""Small helpers for JSON answers."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from aiohttp import web


def response_head(response_id: str, kind: str, model: str, *, stream: bool) -> dict[str, Any]:
    """The members that every completion object and every chunk of it begin with.

    Args:
        kind: ``chat.completion`` or ``text_completion``; only chat chunks have a kind of their own.
    """
    if stream and kind == "chat.completion":
        kind = "chat.completion.chunk"
    return {"id": response_id, "object": kind, "created": int(time.time()), "model": model}


def json_response(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
