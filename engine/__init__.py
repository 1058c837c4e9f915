"""An LLM inference engine with paged KV, continuous batching and an OpenAI-compatible server.

``from engine import LLM, SamplingParams, EngineConfig, AsyncLLM``; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.frontend.async_llm import AsyncLLM
    from engine.frontend.beam_search import BeamSearchParams
    from engine.frontend.llm import LLM
    from engine.sampling_params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "BeamSearchParams", "EngineConfig", "SamplingParams"]

_HOMES = {
    "LLM": "engine.frontend.llm",
    "AsyncLLM": "engine.frontend.async_llm",
    "BeamSearchParams": "engine.frontend.beam_search",
    "EngineConfig": "engine.config",
    "SamplingParams": "engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Load an exported name: ``import engine`` alone stays free of everything heavy."""
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
