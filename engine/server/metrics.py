"""``/metrics`` under vLLM's names and labels, in a registry of its own (one per application, nothing global).

Latencies are seen from the server: arrival is when the request's body was read, a token is there when its
output reaches the server. Queue, prefill, decode and inference times are the core's own stamps. Gauges and
core-side counters are read from the engine's snapshot at scrape time
(:mod:`engine.server.metrics_collector`).
"""

from __future__ import annotations

from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from engine.frontend.beam_search import BeamSearchParams
from engine.messages import EngineCoreOutputs, FinishReason
from engine.sampling_params import SamplingParams
from engine.server import buckets
from engine.server.request_metrics import NS, RequestObserver

M = TypeVar("M", bound=MetricWrapperBase)

LABELS = ("model_name", "engine")
ENGINE_INDEX = "0"
"""One engine a server; the label exists because vLLM's boards group by it."""


class ServerMetrics:
    """All instruments, labels already bound so that observing costs no lookup."""

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.registry = CollectorRegistry()
        self.labels = {"model_name": model_name, "engine": ENGINE_INDEX}
        ProcessCollector(registry=self.registry)
        token_buckets = buckets.tokens(max_model_len)

        self.time_to_first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", buckets.TTFT_S
        )
        self.inter_token_latency = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Time between outputs of a sequence, spread over the tokens of the later one.",
            buckets.TOKEN_LATENCY_S,
        )
        self.time_per_output_token = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per output token after the first, per sequence.",
            buckets.TOKEN_LATENCY_S,
        )
        self.e2e_latency = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token.", buckets.REQUEST_S
        )
        self.queue_time = self._histogram(
            "vllm:request_queue_time_seconds", "Queued to first scheduled.", buckets.REQUEST_S
        )
        self.prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds", "First scheduled to first token.", buckets.REQUEST_S
        )
        self.decode_time = self._histogram(
            "vllm:request_decode_time_seconds", "First token to last token.", buckets.REQUEST_S
        )
        self.inference_time = self._histogram(
            "vllm:request_inference_time_seconds", "First scheduled to last token.", buckets.REQUEST_S
        )
        self.request_prompt_tokens = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens per request.", token_buckets
        )
        self.request_generation_tokens = self._histogram(
            "vllm:request_generation_tokens", "Generated tokens per sequence.", token_buckets
        )
        self.request_max_num_generation_tokens = self._histogram(
            "vllm:request_max_num_generation_tokens", "Longest of a request's n sequences.", token_buckets
        )
        self.request_prefill_kv_computed_tokens = self._histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens that had to be computed (prefix hits left out).",
            token_buckets,
        )
        self.request_params_n = self._histogram(
            "vllm:request_params_n", "The n of requests.", buckets.SEQUENCES
        )
        self.request_params_max_tokens = self._histogram(
            "vllm:request_params_max_tokens", "The max_tokens of requests that set it.", token_buckets
        )
        self.iteration_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Tokens of an engine step.", buckets.ITERATION_TOKENS
        )
        self.kv_block_lifetime = self._histogram(
            "vllm:kv_block_lifetime_seconds",
            "Life of sampled KV blocks, from being taken to being reused for other content.",
            buckets.KV_BLOCK_S,
        )
        self.kv_block_idle = self._histogram(
            "vllm:kv_block_idle_before_evict_seconds",
            "Time since the last prefix hit when a sampled KV block was reused for other content.",
            buckets.KV_BLOCK_S,
        )
        self.kv_block_reuse_gap = self._histogram(
            "vllm:kv_block_reuse_gap_seconds",
            "Time between prefix hits of a sampled KV block, observed when its life ends.",
            buckets.KV_BLOCK_S,
        )

        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens processed.")
        self.prompt_tokens_cached = self._counter(
            "vllm:prompt_tokens_cached", "Prompt tokens served from the prefix cache."
        )
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            (*LABELS, "source"),
            registry=self.registry,
        )
        self.prompt_tokens_computed = by_source.labels(**self.labels, source="local_compute")
        self.prompt_tokens_hit = by_source.labels(**self.labels, source="local_cache_hit")
        success = Counter(
            "vllm:request_success",
            "Sequences that ended, by finish reason.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.request_success = {
            reason: success.labels(**self.labels, finished_reason=reason.value) for reason in FinishReason
        }
        self.admission_rejections = self._counter(
            "vllm:admission_rejections", "Requests refused because the queue was full."
        )
        self.http_requests = Counter(
            "http_requests",
            "HTTP requests by path template, method and status.",
            ("handler", "method", "status"),
            registry=self.registry,
        )

    def observe(self, params: SamplingParams | BeamSearchParams, arrival_ns: int) -> RequestObserver:
        """An observer for one prompt that has just arrived."""
        return RequestObserver(self, params.n or 1, params.max_tokens, arrival_ns)

    def on_step(self, outputs: EngineCoreOutputs) -> None:
        """Take the news of one engine step."""
        if outputs.step_tokens:
            self.iteration_tokens.observe(outputs.step_tokens)
        for eviction in outputs.kv_evictions:
            self.kv_block_lifetime.observe(eviction.lifetime_ns * NS)
            self.kv_block_idle.observe(eviction.idle_ns * NS)
            for gap_ns in eviction.reuse_gaps_ns:
                self.kv_block_reuse_gap.observe(gap_ns * NS)

    def _histogram(self, name: str, doc: str, edges: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, doc, LABELS, buckets=edges, registry=self.registry)
        return _bind(histogram, self.labels)

    def _counter(self, name: str, doc: str) -> Counter:
        return _bind(Counter(name, doc, LABELS, registry=self.registry), self.labels)


def _bind(metric: M, labels: dict[str, str]) -> M:
    return metric.labels(**labels)
