"""Everything that doesn't generate: models, health, metrics, configuration, tokenizer, prefix cache."""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from engine.server.errors import ApiError, bad_request, engine_dead, shutting_down
from engine.server.parsing import read_struct
from engine.server.prompts import encode, render_chat
from engine.server.protocol import DetokenizeRequest, ProfileRequest, TokenizeRequest
from engine.server.responses import json_response
from engine.server.state import STATE, ServerState

DISTRIBUTION = "llm-serving-workbench"


def product_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"


async def health(request: web.Request) -> web.Response:
    """200 while requests are served; 503 when the engine is dead or the server is shutting down."""
    state = request.app[STATE]
    if state.engine.is_dead:
        error = engine_dead(state.engine.dead_error)
        raise ApiError(503, error.message, kind=error.kind, code=error.code)
    if state.inflight.draining:
        raise shutting_down()
    return json_response({"status": "ok"})


async def metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[STATE].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def list_models(request: web.Request) -> web.Response:
    return json_response({"object": "list", "data": [_model(request.app[STATE])]})


async def retrieve_model(request: web.Request) -> web.Response:
    state = request.app[STATE]
    state.check_model(request.match_info["model"])
    return json_response(_model(state))


def _model(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": DISTRIBUTION,
        "root": state.config.model,
        "parent": None,
        "max_model_len": state.engine.max_model_len,
    }


async def server_info(request: web.Request) -> web.Response:
    """The configuration as in force, what it resolved to, and who is answering."""
    state = request.app[STATE]
    options = state.options
    return json_response(
        {
            "version": product_version(),
            "pid": os.getpid(),
            "model": state.model_name,
            "config": state.config.model_dump(mode="json"),
            "resolved": state.engine.info,
            "server": {
                "host": options.host,
                "port": options.port,
                "api_key_required": options.api_key is not None,
                "max_body_bytes": options.max_body_bytes,
                "drain_timeout_s": options.drain_timeout_s,
            },
            "clock": {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()},
        }
    )


async def show_version(request: web.Request) -> web.Response:
    return json_response({"version": product_version()})


async def load(request: web.Request) -> web.Response:
    """Generations being answered, as vLLM's ``/load``."""
    return json_response({"server_load": request.app[STATE].inflight.requests})


async def tokenize(request: web.Request) -> web.Response:
    state = request.app[STATE]
    body = await read_struct(request, TokenizeRequest)
    state.check_model(body.model)
    tokenizer = state.engine.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "prompt, messages: exactly one of them")
    if body.prompt is None:
        if body.add_special_tokens is not None:
            raise bad_request("add_special_tokens", "add_special_tokens: only with prompt")
        tokens = await render_chat(tokenizer, body)
    else:
        tokens = await encode(tokenizer, body.prompt, body.add_special_tokens is not False)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": state.engine.max_model_len,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = tokenizer.tokens(tokens)
    return json_response(answer)


async def detokenize(request: web.Request) -> web.Response:
    state = request.app[STATE]
    body = await read_struct(request, DetokenizeRequest)
    state.check_model(body.model)
    vocab_size = state.engine.tokenizer.vocab_size
    for token in body.tokens:
        if token >= vocab_size:
            raise bad_request(
                "tokens", f"tokens: id {token} is not in the vocabulary (0 to {vocab_size - 1})"
            )
    return json_response({"prompt": state.engine.tokenizer.decode(body.tokens, skip_special_tokens=False)})


async def start_profile(request: web.Request) -> web.Response:
    """Profile the next steps with torch.profiler, bounded in steps and seconds. The body may be left out."""
    body = await read_struct(request, ProfileRequest) if request.can_read_body else ProfileRequest()
    await request.app[STATE].engine.start_profile(body.num_steps, body.max_seconds)
    return json_response({"profiling": True, "num_steps": body.num_steps, "max_seconds": body.max_seconds})


async def stop_profile(request: web.Request) -> web.Response:
    """End the profiled window before its bounds do; its trace is written in the background."""
    return json_response(
        {"profiling": False, "was_profiling": await request.app[STATE].engine.stop_profile()}
    )


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Forget all cached prefixes; 409 while running requests hold blocks."""
    if not await request.app[STATE].engine.reset_prefix_cache():
        raise ApiError(
            409,
            "the prefix cache is in use: try again when no request is running",
            code="prefix_cache_in_use",
        )
    return json_response({"success": True})
