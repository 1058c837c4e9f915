"""The scheduler workloads of tier 1: sixteen small cases, each of which something in the scheduler or in the
KV cache decides. Frozen: a change here changes every number, so the gate compares only runs of one version.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

Request = dict[str, Any]
COST = {
    "base_ns": 6_500_000.0, "per_token_ns": 390_000.0, "per_kv_ns": 500.0, "per_attention_ns": 12.0,
    "per_request_ns": 300_000.0,
}  # fmt: skip
"""A step of a small model on two CPU cores; the very numbers matter less than that they never change."""
SLO = {"ttft_us": 2_500_000, "gap_us": 300_000}


def _poisson(
    seed: int, rate: float, count: int, make: Callable[[random.Random, int], Request]
) -> list[Request]:
    draw = random.Random(seed)
    at, requests = 0.0, []
    for number in range(count):
        at += draw.expovariate(rate)
        requests.append({"at_us": int(at * 1e6), **make(draw, number)})
    return requests


def _plain(tag: str, low: int, high: int, output: int) -> Callable[[random.Random, int], Request]:
    def make(draw: random.Random, number: int) -> Request:
        return {"prompt": [[f"{tag}{number}", draw.randint(low, high)]], "max_tokens": output}

    return make


def _mixed(draw: random.Random, number: int) -> Request:
    if number % 4 == 3:
        return {"prompt": [[f"doc{number}", draw.randint(1500, 3000)]], "max_tokens": 16}
    return {"prompt": [[f"chat{number}", draw.randint(32, 128)]], "max_tokens": draw.randint(24, 64)}


def _shared_prefix(draw: random.Random, number: int) -> Request:
    return {
        "prompt": [["system", 448], [f"question{number}", draw.randint(16, 96)]],
        "max_tokens": 24,
    }


def _asked_again(draw: random.Random, number: int) -> Request:
    return {"prompt": [[f"doc{draw.randrange(6)}", 700], [f"ask{number}", 20]], "max_tokens": 12}


def _turns(draw: random.Random, number: int) -> Request:
    chat, turn = number % 5, number // 5
    parts = [[f"chat{chat}turn{earlier}", 90] for earlier in range(turn + 1)]
    return {"prompt": parts, "max_tokens": draw.randint(8, 24)}


def _with_priority(draw: random.Random, number: int) -> Request:
    return {**_mixed(draw, number), "priority": draw.choice([0, 0, 5])}


def _burst(count: int, make: Callable[[random.Random, int], Request]) -> list[Request]:
    draw = random.Random(99)
    return [{"at_us": 0, **make(draw, number)} for number in range(count)]


def _workload(name: str, requests: list[Request], *, eos: bool = False, **config: Any) -> dict[str, Any]:
    base = {"max_num_batched_tokens": 512, "max_num_seqs": 32, "num_gpu_blocks_override": 2048}
    return {
        "name": name, "config": {**base, **config}, "cost": COST, "slo": SLO, "eos": eos,
        "requests": requests,
    }  # fmt: skip


def scheduler_workloads() -> list[dict[str, Any]]:
    """All of them, as plain data that a script in another revision reads."""
    mixed = _poisson(3, 2.2, 40, _mixed)
    growing = _poisson(8, 12.0, 30, _plain("grow", 48, 96, 160))
    return [
        _workload("short-chats", _poisson(1, 6.0, 60, _plain("chat", 16, 128, 32))),
        _workload("long-prompts", _poisson(2, 0.8, 16, _plain("doc", 1500, 3500, 8))),
        _workload("mixed", mixed),
        _workload("mixed-large-budget", mixed, max_num_batched_tokens=2048),
        _workload("mixed-small-budget", mixed, max_num_batched_tokens=64),
        _workload("mixed-no-chunks", mixed, enable_chunked_prefill=False, max_num_batched_tokens=4096,
                  max_model_len=4096),
        _workload("mixed-capped-prefill", mixed, long_prefill_token_threshold=128),
        _workload("mixed-one-partial-prefill", mixed, max_num_batched_tokens=1024,
                  long_prefill_token_threshold=256, max_num_partial_prefills=1),
        _workload("mixed-async", mixed, async_scheduling=True),
        _workload("burst", _burst(64, _plain("burst", 64, 192, 24)), max_num_seqs=16),
        _workload("priorities", _poisson(4, 2.6, 40, _with_priority), scheduling_policy="priority"),
        _workload("short-of-blocks", growing, num_gpu_blocks_override=160),
        _workload("short-of-blocks-watermark", growing, num_gpu_blocks_override=160,
                  watermark=0.2),
        _workload("shared-prefix", _poisson(5, 3.0, 40, _shared_prefix), block_size=16),
        _workload("cache-eviction", _poisson(6, 1.6, 30, _asked_again), num_gpu_blocks_override=180),
        _workload("turns-with-eos", _poisson(7, 2.0, 40, _turns), eos=True, block_size=32),
    ]  # fmt: skip


def with_sha256(specification: dict[str, Any]) -> dict[str, Any]:
    """The specification with its own hash: an answer to another one is no answer."""
    text = json.dumps(specification, sort_keys=True, separators=(",", ":"))
    return {**specification, "sha256": hashlib.sha256(text.encode()).hexdigest()}
