"""Chat messages: roles and content parts, down to what a chat template takes."""

from __future__ import annotations

from typing import Any

from engine.server.errors import ApiError, bad_request

ROLES = ("system", "developer", "user", "assistant")
_TOOL_FIELDS = ("tool_calls", "tool_call_id", "function_call")
_FIELDS = frozenset({"role", "content", "name"})
_NULL_ONLY = frozenset({"refusal", "audio", "annotations", "reasoning", "reasoning_content", *_TOOL_FIELDS})
"""Sent back by clients that repeat an answer of ours; fine while they are empty."""


def normalize_messages(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Messages as a chat template takes them: ``role``, ``content`` (one string) and ``name`` when given.

    ``developer`` becomes ``system``: it is OpenAI's newer name for it and no open template knows it. The
    text parts of a message are joined with newlines.

    Raises:
        ApiError: 400 naming the message and the field.
    """
    if not messages:
        raise bad_request("messages", "messages=[]: at least one message")
    return [_normalize(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalize(message: dict[str, Any], where: str) -> dict[str, str]:
    for field, value in message.items():
        if field in _FIELDS or (field in _NULL_ONLY and value in (None, [], "")):
            continue
        if field in _TOOL_FIELDS:
            raise _unsupported(f"{where}.{field}", "tool calling is not supported")
        raise bad_request(f"{where}.{field}", f"{where}.{field}: unknown field", code="unknown_parameter")
    role = message.get("role")
    if role in ("tool", "function"):
        raise _unsupported(f"{where}.role", f"role={role!r}: tool calling is not supported")
    if role not in ROLES:
        raise bad_request(f"{where}.role", f"{where}.role={role!r}: one of {', '.join(ROLES)}")
    normalized = {
        "role": "system" if role == "developer" else str(role),
        "content": _text(message.get("content"), f"{where}.content"),
    }
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise bad_request(f"{where}.name", f"{where}.name={name!r}: text")
        normalized["name"] = name
    return normalized


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(where, f"{where}={content!r:.80}: text, or a list of text parts")
    if not content:
        raise bad_request(where, f"{where}=[]: at least one part")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise bad_request(where, f"{where}={part!r:.80}: an object like {{'type': 'text', 'text': ...}}")
    kind = part.get("type")
    if kind != "text":
        raise _unsupported(f"{where}.type", f"{where}.type={kind!r:.80}: only 'text' is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise bad_request(f"{where}.text", f"{where}.text={text!r:.80}: text")
    if extra := part.keys() - {"type", "text"}:
        name = f"{where}.{min(extra)}"
        raise bad_request(name, f"{name}: unknown field", code="unknown_parameter")
    return text


def _unsupported(param: str, message: str) -> ApiError:
    return bad_request(param, message, code="unsupported_parameter")
