"""What the handlers share: one object per application, passed through aiohttp's typed key."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from engine.config import EngineConfig
from engine.server.errors import ApiError, bad_request
from engine.server.inflight import Inflight
from engine.server.metrics import ServerMetrics
from engine.server.options import ServerOptions

if TYPE_CHECKING:
    from engine.frontend.async_llm import AsyncLLM


@dataclass(frozen=True, slots=True)
class ServerState:
    engine: AsyncLLM
    config: EngineConfig
    options: ServerOptions
    metrics: ServerMetrics
    inflight: Inflight
    model_name: str
    """Name in the API."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds at which the model was ready."""

    def check_model(self, model: str | None) -> None:
        """Refuse a model that isn't served; leaving it out means the served one."""
        if model is not None and model != self.model_name:
            raise ApiError(
                404,
                f"model={model!r:.120}: does not exist here; this server serves {self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def check_priority(self, priority: int) -> None:
        """Refuse a priority that the scheduling policy would ignore."""
        if priority and self.config.scheduling_policy != "priority":
            raise bad_request(
                "priority",
                f"priority={priority}: only 0 unless the server runs with --scheduling-policy priority",
            )


STATE: web.AppKey[ServerState] = web.AppKey("state", ServerState)


def served_name(config: EngineConfig) -> str:
    """``served_model_name``, or the model as it was named."""
    return config.served_model_name or config.model
