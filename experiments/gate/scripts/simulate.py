"""Tier 1, inside a revision: its scheduler on virtual time. Everything that comes out is an integer."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import answer, prompt_of, read_specification, whose_engine  # beside this file


class CallCounter:
    """Counts calls of Python functions of the engine: work per step that no clock's noise can hide."""

    def __init__(self, root: str) -> None:
        self._root = root + "/engine/"
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._root):
            self.calls += 1

    def __enter__(self) -> CallCounter:
        sys.setprofile(self)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)


def run_workload(workload: dict[str, Any], root: str) -> dict[str, int]:
    from engine.config import EngineConfig
    from engine.executor.sim import CostModel, TokenModel
    from engine.sampling_params import SamplingParams
    from engine.sim import SimRequest, simulate

    requests = [
        SimRequest(
            request_id=str(number),
            prompt_token_ids=prompt_of(request["prompt"]),
            params=SamplingParams(max_tokens=request["max_tokens"], ignore_eos=not workload["eos"]),
            offset_ns=request["at_us"] * 1000,
            priority=request.get("priority", 0),
        )
        for number, request in enumerate(workload["requests"])
    ]
    tokens = TokenModel(eos_token_id=2, eos_every=40) if workload["eos"] else TokenModel()
    with CallCounter(root) as counter:
        result = simulate(
            EngineConfig(**workload["config"]), requests, CostModel(**workload["cost"]), token_model=tokens
        )
    ttft = [r.ttft_ns for r in result.requests if r.ttft_ns is not None]
    itl = [gap for r in result.requests for gap in r.itl_ns]
    steps: list[dict[str, Any]] = result.steps
    return {
        "ttft_p50_ns": percentile(ttft, 50),
        "ttft_p99_ns": percentile(ttft, 99),
        "itl_p50_ns": percentile(itl, 50),
        "itl_p99_ns": percentile(itl, 99),
        "good_requests": sum(is_good(r, workload["slo"]) for r in result.requests),
        "duration_ns": result.end_ns,
        "steps": sum(1 for step in steps if step["prefill_tokens"] or step["decode_tokens"]),
        "computed_tokens": sum(step["prefill_tokens"] + step["decode_tokens"] for step in steps),
        "output_tokens": sum(len(r.token_ids) for r in result.requests),
        "refused": sum(r.error is not None for r in result.requests),
        "preemptions": result.stats.num_preemptions,
        "prefix_hit_tokens": result.stats.prefix_cache_hits,
        "peak_kv_blocks": max((step["kv_used"] for step in steps), default=0),
        "python_calls": counter.calls,
    }


def percentile(values: list[int], percent: int) -> int:
    """Nearest rank: an observed value, so nothing is rounded."""
    if not values:
        return 0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def is_good(request: Any, slo: dict[str, int]) -> bool:
    if request.ttft_ns is None or request.ttft_ns > slo["ttft_us"] * 1000:
        return False
    return all(gap <= slo["gap_us"] * 1000 for gap in request.itl_ns)


def main() -> None:
    specification = read_specification()
    root = whose_engine()
    results: dict[str, Any] = {}
    for workload in specification["workloads"]:
        try:
            results[workload["name"]] = run_workload(workload, root)
        except Exception as error:
            # Another revision may lack a setting: an answer about this workload, not about the others.
            results[workload["name"]] = {"error": f"{type(error).__name__}: {error}"}
    answer(specification, workloads=results)


if __name__ == "__main__":
    main()
