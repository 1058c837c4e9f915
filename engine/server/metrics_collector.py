"""Gauges and core-side counters: read from the engine's last snapshot when a scraper asks, never kept
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.config import EngineConfig
from engine.messages import SchedulerStats

if TYPE_CHECKING:
    from engine.frontend.async_llm import AsyncLLM
    from engine.server.inflight import Inflight

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "num_preemptions": ("vllm:num_preemptions", "Preemptions."),
    "prefix_cache_queries": ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "Tokens found in the prefix cache."),
    "prompt_tokens_recomputed": (
        "vllm:prompt_tokens_recomputed",
        "Prompt tokens found in the prefix cache but computed again: a request computes at least one.",
    ),
    "resumed_prefix_cache_queries": (
        "workbench:resumed_prefix_cache_queries",
        "Tokens looked up in the prefix cache when a preempted request resumed.",
    ),
    "resumed_prefix_cache_hits": (
        "workbench:resumed_prefix_cache_hits",
        "Tokens found in the prefix cache when a preempted request resumed.",
    ),
    "num_steps": ("workbench:engine_steps", "Engine steps."),
}
"""Field of :class:`SchedulerStats` → name and help text."""


class EngineCollector(Collector):
    """``vllm:num_requests_*``, ``vllm:kv_cache_usage_perc``, ``vllm:cache_config_info`` and the core's
    counters.
    """

    def __init__(
        self, engine: AsyncLLM, config: EngineConfig, inflight: Inflight, labels: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._config = config
        self._inflight = inflight
        self._names = list(labels)
        self._values = list(labels.values())

    def describe(self) -> Iterator[Metric]:
        """Nothing to declare up front: keeps registration from calling :meth:`collect`."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        running = stats.num_running if stats else 0
        waiting = stats.num_waiting if stats else 0
        yield self._gauge("vllm:num_requests_running", "Requests in the running batch.", running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.", waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of usable KV blocks in use (0 to 1).", kv_usage(stats)
        )
        yield self._gauge(
            "workbench:http_requests_inflight", "Generations being answered.", self._inflight.requests
        )
        yield self._cache_config()
        for field, (name, doc) in _COUNTERS.items():
            counter = CounterMetricFamily(name, doc, labels=self._names)
            counter.add_metric(self._values, getattr(stats, field) if stats else 0)
            yield counter

    def _gauge(self, name: str, doc: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, doc, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge

    def _cache_config(self) -> Metric:
        info: Mapping[str, Any] = self._engine.info
        shown = {
            "block_size": self._config.block_size,
            "cache_dtype": info.get("dtype"),
            "enable_prefix_caching": self._config.enable_prefix_caching,
            "kv_cache_memory_bytes": self._config.kv_cache_memory_bytes,
            "num_gpu_blocks": info.get("num_kv_blocks"),
            "num_gpu_blocks_override": self._config.num_gpu_blocks_override,
        }
        gauge = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Configuration of the KV cache, as labels; always 1.",
            labels=[*self._names, *shown],
        )
        gauge.add_metric([*self._values, *(str(value) for value in shown.values())], 1)
        return gauge


def kv_usage(stats: SchedulerStats | None) -> float:
    """Used share of the usable KV blocks, 0 to 1."""
    if stats is None or stats.kv_blocks_total == 0:
        return 0.0
    return stats.kv_blocks_used / stats.kv_blocks_total
