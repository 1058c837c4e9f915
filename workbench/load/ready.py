"""Before the load: wait for the server, ask who it is, and find out which extensions of the API it takes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from engine.errors import InvalidInputError
from workbench.errors import TargetError
from workbench.load.bodies import PATHS, Endpoint, Features, content
from workbench.targets.base import ServerFacts
from workloads import WorkloadRequest

_PAUSE_S = 0.25
_QUIET_S = 1.0
"""Nothing is said about a wait that is no longer than this."""
_CALL = aiohttp.ClientTimeout(total=10.0)


async def server_facts(
    session: aiohttp.ClientSession,
    base_url: str,
    model: str | None,
    wait_s: float,
    waiting: Callable[[str], None] | None = None,
) -> ServerFacts:
    """Ask ``/v1/models`` and ``/server_info``; waits up to ``wait_s`` for the server to answer at all.

    Args:
        waiting: told, again and again, for what it waits, why, and how long still.

    Raises:
        InvalidInputError: no server answers at ``base_url``, or it lists no model and none was named.
    """
    models = await _models(session, base_url, wait_s, waiting)
    entry: dict[str, Any] = {}
    for candidate in models:
        if model is None or candidate.get("id") == model:
            entry = candidate
            break
    name = model or entry.get("id")
    if not isinstance(name, str):
        raise InvalidInputError("model", model, f"a model's name: {base_url}/v1/models lists none")
    info = await _json(session, f"{base_url}/server_info?config_format=json")
    config, resolved = _mapping(info.get("config")), _mapping(info.get("resolved"))
    echo: dict[str, Any] | None
    if config:
        echo = {**config, **{k: v for k, v in resolved.items() if k != "model"}}
    else:
        echo = await _echo_of_others(session, base_url, info)
    return ServerFacts(
        model=name,
        vocab_size=_count(resolved.get("vocab_size")),
        max_model_len=_count(resolved.get("max_model_len")) or _count(entry.get("max_model_len")),
        echo=echo,
        raw=info,
    )


async def _echo_of_others(
    session: aiohttp.ClientSession, base_url: str, info: dict[str, Any]
) -> dict[str, Any] | None:
    """Settings in force as vLLM (``VLLM_SERVER_DEV_MODE=1``) and SGLang tell them, flat; None: it does not
    tell."""
    sections = _mapping(info.get("vllm_config"))
    if sections:
        flat: dict[str, Any] = {}
        for section in sections.values():
            flat |= {name: value for name, value in _mapping(section).items() if _is_plain(value)}
        return flat or None
    arguments = await _json(session, f"{base_url}/get_server_info")
    return {name: value for name, value in arguments.items() if _is_plain(value)} or None


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


async def negotiate(
    session: aiohttp.ClientSession,
    base_url: str,
    endpoint: Endpoint,
    model: str,
    request: WorkloadRequest,
    extra_body: dict[str, Any],
    wait_s: float,
) -> Features:
    """Send ``request`` for one token, leaving out what the server refuses: a strict one answers an unknown
    field with HTTP 400.

    Raises:
        TargetError: it refuses even the plain request, or gives no answer in ``wait_s``.
    """
    refusal = ""
    for features in (
        Features(),
        Features(return_token_ids=False),
        Features(return_token_ids=False, ignore_eos=False),
        Features(return_token_ids=False, ignore_eos=False, stream_usage=False),
    ):
        body: dict[str, Any] = {"model": model, "max_tokens": 1, "stream": True}
        if features.return_token_ids:
            body["return_token_ids"] = True
        if features.ignore_eos:
            body["ignore_eos"] = True
        if features.stream_usage:
            body["stream_options"] = {"include_usage": True}
        body |= request.extra_body | content(request, endpoint) | extra_body
        url = base_url + PATHS[endpoint]
        try:
            timeout = aiohttp.ClientTimeout(total=wait_s)
            async with session.post(url, json=body, timeout=timeout) as response:
                text = (await response.content.read(2048)).decode("utf-8", "replace")
                status = response.status
                if 200 <= status < 300:
                    async for _rest in response.content.iter_any():
                        pass
                    return features
        except TimeoutError:
            raise TargetError(f"{url}: no answer to a first request in {wait_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise TargetError(f"{url}: a first request failed: {error}") from None
        refusal = f"{url} answers a first request with HTTP {status}: {_reason(text)}"
        if status not in (400, 422):
            break
    raise TargetError(refusal)


async def _models(
    session: aiohttp.ClientSession, base_url: str, wait_s: float, waiting: Callable[[str], None] | None
) -> list[dict[str, Any]]:
    begin = time.monotonic()
    deadline = begin + wait_s
    while True:
        try:
            async with session.get(f"{base_url}/v1/models", timeout=_CALL) as response:
                if response.status in (401, 403):
                    raise InvalidInputError(
                        "api-key", "...", f"a key that {base_url} accepts (HTTP {response.status})"
                    )
                if response.status < 500:
                    body = _parse(await response.read())
                    data = body.get("data")
                    return [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
                reason = f"HTTP {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = _why(error)
        left_s = deadline - time.monotonic()
        if waiting is not None and time.monotonic() - begin >= _QUIET_S and left_s > 0:
            waiting(
                f"waiting for {base_url} ({reason}), at most {left_s:.0f} s more: --ready-check-timeout-sec "
                "sets how long"
            )
        if time.monotonic() + _PAUSE_S > deadline:
            raise InvalidInputError(
                "base-url", base_url, f"a server that answers within {wait_s:g} s ({reason})"
            )
        await asyncio.sleep(_PAUSE_S)


def _why(error: Exception) -> str:
    """In the words of the system where it has some: ``Connection refused``."""
    if isinstance(error, aiohttp.ClientConnectorError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    if isinstance(error, TimeoutError):
        return "it takes the connection and does not answer"
    return str(error) or type(error).__name__


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """A JSON object, or an empty one when the server has none there."""
    try:
        async with session.get(url, timeout=_CALL) as response:
            return _parse(await response.read()) if response.status == 200 else {}
    except (aiohttp.ClientError, OSError, TimeoutError):
        return {}


def _parse(data: bytes) -> dict[str, Any]:
    try:
        return _mapping(json.loads(data))
    except ValueError:
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _reason(text: str) -> str:
    try:
        error = json.loads(text)
        message = (
            error["error"]["message"] if isinstance(error.get("error"), dict) else error.get("message", text)
        )
    except (ValueError, KeyError, AttributeError):
        message = text
    return " ".join(str(message).split())[:300]
