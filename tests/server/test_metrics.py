"""``/metrics``: vLLM's names, labels and meaning."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import EngineCoreOutputs, KVBlockEviction
from engine.server import buckets
from tests.server.fake_engine import FakeEngine, make_stats
from tests.server.waiting import until

HISTOGRAMS = {
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:iteration_tokens_total",
    "vllm:kv_block_lifetime_seconds",
    "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_reuse_gap_seconds",
}
COUNTERS = {
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_by_source",
    "vllm:prompt_tokens_cached",
    "vllm:prompt_tokens_recomputed",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:admission_rejections",
}
GAUGES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
}

Samples = dict[tuple[str, str], float]


async def _scrape(http: aiohttp.ClientSession) -> tuple[dict[str, str], Samples]:
    """Types by family, and values by (sample name, the label that is not one of the common ones)."""
    async with http.get("metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        text = await response.text()
    types: dict[str, str] = {}
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        for sample in family.samples:
            if family.name.startswith(("vllm:", "workbench:")):
                assert sample.labels["model_name"] == "fake"
                assert sample.labels["engine"] == "0"
            extra = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            samples[sample.name, extra[0] if len(extra) == 1 else ""] = sample.value
    return types, samples


async def _complete(http: aiohttp.ClientSession, **fields: object) -> int:
    body = {"prompt": "hello", "max_tokens": 100, **fields}
    async with http.post("v1/completions", json=body) as response:
        await response.read()
        return response.status


async def test_every_metric_exists(http: aiohttp.ClientSession) -> None:
    types, _ = await _scrape(http)
    assert {name for name, kind in types.items() if kind == "histogram"} == HISTOGRAMS
    assert {name for name, kind in types.items() if kind == "counter"} >= COUNTERS
    assert {name for name, kind in types.items() if kind == "gauge"} >= GAUGES
    assert "process_resident_memory_bytes" in types


async def test_gauges_and_core_counters(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    _, samples = await _scrape(http)
    assert samples["vllm:num_requests_running", ""] == 0
    engine.stats = make_stats()
    _, samples = await _scrape(http)
    assert samples["vllm:num_requests_running", ""] == 2
    assert samples["vllm:num_requests_waiting", ""] == 1
    assert samples["vllm:kv_cache_usage_perc", ""] == 0.25
    assert samples["vllm:num_preemptions_total", ""] == 3
    assert samples["vllm:prefix_cache_queries_total", ""] == 100
    assert samples["vllm:prefix_cache_hits_total", ""] == 40
    assert samples["vllm:prompt_tokens_recomputed_total", ""] == 11


async def test_one_request(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    engine.num_cached_tokens = 2
    assert await _complete(http) == 200
    _, samples = await _scrape(http)
    generated = len(engine.reply) + 1
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 1
    assert samples["vllm:inter_token_latency_seconds_count", ""] == generated - 1
    assert samples["vllm:request_time_per_output_token_seconds_count", ""] == 1
    assert samples["vllm:e2e_request_latency_seconds_count", ""] == 1
    assert samples["vllm:prompt_tokens_total", ""] == 5
    assert samples["vllm:prompt_tokens_cached_total", ""] == 2
    assert samples["vllm:prompt_tokens_by_source_total", "local_compute"] == 3
    assert samples["vllm:prompt_tokens_by_source_total", "local_cache_hit"] == 2
    assert samples["vllm:request_prefill_kv_computed_tokens_sum", ""] == 3
    assert samples["vllm:generation_tokens_total", ""] == generated
    assert samples["vllm:request_generation_tokens_sum", ""] == generated
    assert samples["vllm:request_max_num_generation_tokens_sum", ""] == generated
    assert samples["vllm:request_prompt_tokens_sum", ""] == 5
    assert samples["vllm:request_params_max_tokens_sum", ""] == 100
    assert samples["vllm:request_success_total", "stop"] == 1
    assert samples["vllm:request_success_total", "length"] == 0
    # the core's stamps of the scripted engine: queued at 1 ms, scheduled 3, first token 13, last 33
    assert samples["vllm:request_queue_time_seconds_sum", ""] == pytest.approx(0.002)
    assert samples["vllm:request_prefill_time_seconds_sum", ""] == pytest.approx(0.010)
    assert samples["vllm:request_decode_time_seconds_sum", ""] == pytest.approx(0.020)
    assert samples["vllm:request_inference_time_seconds_sum", ""] == pytest.approx(0.030)


async def test_n_sequences(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    await _complete(http, n=3, max_tokens=4)
    _, samples = await _scrape(http)
    assert samples["vllm:request_params_n_sum", ""] == 3
    assert samples["vllm:request_success_total", "length"] == 3
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 3
    assert samples["vllm:generation_tokens_total", ""] == 12
    assert samples["vllm:prompt_tokens_total", ""] == 5
    assert samples["vllm:request_max_num_generation_tokens_sum", ""] == 4


async def test_refused_requests_count_nowhere_but_in_http(http: aiohttp.ClientSession) -> None:
    assert await _complete(http, temperature=7) == 400
    _, samples = await _scrape(http)
    assert samples["vllm:prompt_tokens_total", ""] == 0
    assert sum(value for (name, _), value in samples.items() if name == "vllm:request_success_total") == 0
    async with http.get("metrics") as response:
        text = await response.text()
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="400"} 1.0' in text


@pytest.mark.parametrize(("stall_after", "delivered"), [(0, 0), (3, 3)])
async def test_aborted_request(
    server: TestServer, http: aiohttp.ClientSession, engine: FakeEngine, stall_after: int, delivered: int
) -> None:
    engine.stall_after = stall_after
    task = asyncio.create_task(_complete(http))
    await until(lambda: bool(engine.stalled))
    async with http.get("load") as response:
        assert await response.json() == {"server_load": 1}
    task.cancel()
    await until(lambda: bool(engine.aborted))
    _, samples = await _scrape(http)
    assert samples["vllm:request_success_total", "abort"] == 1
    assert samples["vllm:generation_tokens_total", ""] == delivered
    assert samples["workbench:http_requests_inflight", ""] == 0


async def test_cache_config(http: aiohttp.ClientSession) -> None:
    async with http.get("metrics") as response:
        line = next(
            line
            for line in (await response.text()).splitlines()
            if line.startswith("vllm:cache_config_info{")
        )
    assert line.endswith("} 1.0")
    for label in ('block_size="16"', 'num_gpu_blocks="64"', 'cache_dtype="float32"'):
        assert label in line


def test_buckets_rise_and_are_fine_enough() -> None:
    for edges in (buckets.TTFT_S, buckets.TOKEN_LATENCY_S, buckets.REQUEST_S, buckets.ITERATION_TOKENS):
        assert list(edges) == sorted(set(edges))
    assert sum(edge < 0.01 for edge in buckets.TOKEN_LATENCY_S) >= 8  # where a small model's tokens are
    assert buckets.tokens(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    assert buckets.tokens(100) == (1, 2, 5, 10, 20, 50, 100)


async def test_engine_steps(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    (listener,) = engine.step_listeners
    for step_tokens in (3, 12, 0):  # a step without tokens only brought news
        listener(EngineCoreOutputs(outputs=[], stats=make_stats(), step_tokens=step_tokens, timestamp_ns=1))
    _, samples = await _scrape(http)
    assert samples["vllm:iteration_tokens_total_count", ""] == 2
    assert samples["vllm:iteration_tokens_total_sum", ""] == 15
    assert samples["vllm:iteration_tokens_total_bucket", "8.0"] == 1


async def test_lives_of_kv_blocks(http: aiohttp.ClientSession, engine: FakeEngine) -> None:
    (listener,) = engine.step_listeners
    life = KVBlockEviction(lifetime_ns=5_000_000_000, idle_ns=1_500_000_000, reuse_gaps_ns=[10**9, 3 * 10**9])
    listener(
        EngineCoreOutputs(
            outputs=[], stats=make_stats(), step_tokens=0, timestamp_ns=1, kv_evictions=[life, life]
        )
    )
    _, samples = await _scrape(http)
    assert samples["vllm:kv_block_lifetime_seconds_sum", ""] == pytest.approx(10)
    assert samples["vllm:kv_block_idle_before_evict_seconds_sum", ""] == pytest.approx(3)
    assert samples["vllm:kv_block_reuse_gap_seconds_sum", ""] == pytest.approx(8)
    assert samples["vllm:kv_block_reuse_gap_seconds_count", ""] == 4
