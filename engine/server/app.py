"""The aiohttp application: routes, and the one middleware at its edge."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from engine.config import EngineConfig
from engine.server import admin
from engine.server.chat import create_chat_completion
from engine.server.completions import create_completion
from engine.server.errors import ApiError, to_api_error
from engine.server.inflight import Inflight
from engine.server.metrics import ServerMetrics
from engine.server.metrics_collector import EngineCollector
from engine.server.options import ServerOptions
from engine.server.request_id import HEADER, assign_request_id, request_id_of
from engine.server.state import STATE, ServerState, served_name

if TYPE_CHECKING:
    from engine.frontend.async_llm import AsyncLLM

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})
"""Answered without a key: probes and scrapers have none."""


def build_app(engine: AsyncLLM, config: EngineConfig, options: ServerOptions) -> web.Application:
    """An application that serves ``engine``, which is started and owned by the caller."""
    name = served_name(config)
    metrics = ServerMetrics(name, engine.max_model_len)
    engine.add_step_listener(metrics.on_step)
    inflight = Inflight()
    metrics.registry.register(EngineCollector(engine, config, inflight, metrics.labels))
    app = web.Application(middlewares=[_edge], client_max_size=options.max_body_bytes)
    app[STATE] = ServerState(engine, config, options, metrics, inflight, name)
    app.on_response_prepare.append(_echo_request_id)
    app.add_routes(
        [
            web.post("/v1/completions", create_completion),
            web.post("/v1/chat/completions", create_chat_completion),
            web.get("/v1/models", admin.list_models),
            web.get("/v1/models/{model:.+}", admin.retrieve_model),
            web.get("/health", admin.health),
            web.get("/metrics", admin.metrics),
            web.get("/server_info", admin.server_info),
            web.get("/version", admin.show_version),
            web.get("/load", admin.load),
            web.post("/tokenize", admin.tokenize),
            web.post("/detokenize", admin.detokenize),
            web.post("/reset_prefix_cache", admin.reset_prefix_cache),
            web.post("/start_profile", admin.start_profile),
            web.post("/stop_profile", admin.stop_profile),
        ]
    )
    return app


@web.middleware
async def _edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Request id, key, and every error as an OpenAI error object."""
    status = 499  # what a client that left before its answer is counted as
    try:
        assign_request_id(request)
        _check_key(request)
        response = await handler(request)
        status = response.status
    except Exception as error:
        answer = to_api_error(error)
        status = answer.status
        return answer.response()
    else:
        return response
    finally:
        _count(request, status)


def _check_key(request: web.Request) -> None:
    key = request.app[STATE].options.api_key
    if key is None or request.path in OPEN_PATHS:
        return
    given = request.headers.get(hdrs.AUTHORIZATION, "")
    expected = f"Bearer {key.get_secret_value()}"
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise ApiError(
            401,
            "wrong or missing API key: send Authorization: Bearer KEY",
            kind="authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _count(request: web.Request, status: int) -> None:
    metrics = request.app[STATE].metrics
    resource = request.match_info.route.resource
    template = resource.canonical if resource is not None else "unknown"
    method = request.method if request.method in hdrs.METH_ALL else "other"
    metrics.http_requests.labels(handler=template, method=method, status=str(status)).inc()
    if status == 429:
        metrics.admission_rejections.inc()


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[HEADER] = request_id_of(request)
