"""Run a scenario on the real engine core and compare each request with its solo run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.base import Executor
from engine.executor.torch_executor import TorchExecutor
from engine.messages import EngineCoreRequest, FinishReason, SchedulerStats, TokenLogprobs
from engine.models.backend import ModelBackend
from engine.trace.recorder import NullRecorder
from tests.differential.backends import Arithmetic
from tests.differential.scenario import EOS, MAX_MODEL_LEN, RequestSpec, Scenario, make_scenario
from tests.differential.solo import Solo

MAX_STEPS = 5_000
ExecutorFactory = Callable[[ModelBackend, EngineConfig], Executor]


def torch_executor(backend: ModelBackend, config: EngineConfig) -> Executor:
    blocks = config.num_gpu_blocks_override or 2
    return TorchExecutor(backend, blocks, config.max_num_seqs, MAX_MODEL_LEN, config.block_size)


@dataclass
class Got:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


@dataclass
class Tally:
    """What the scenarios have covered; a differential test that never preempts proves little."""

    scenarios: int = 0
    requests: int = 0
    tokens: int = 0
    aborted: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    mismatches: list[str] = field(default_factory=list)


def run_scenario(
    seed: int, arithmetic: Arithmetic, tally: Tally, new_executor: ExecutorFactory = torch_executor
) -> None:
    scenario = make_scenario(seed, arithmetic.size)
    executor = new_executor(arithmetic.batched(scenario.config.block_size), scenario.config)
    got, stats = _run(scenario, executor)
    solo = Solo(arithmetic.alone(16), 16)
    tally.scenarios += 1
    tally.preemptions += stats.num_preemptions
    tally.prefix_hit_tokens += stats.prefix_cache_hits
    for index, (spec, ours) in enumerate(zip(scenario.requests, got, strict=True)):
        tally.requests += 1
        tally.tokens += len(ours.tokens)
        tokens, reason, logprobs = solo.run(spec.prompt, spec.params)
        if spec.abort_step is not None and ours.reason is not reason:
            tally.aborted += 1
            tokens, reason, logprobs = tokens[: len(ours.tokens)], ours.reason, logprobs[: len(ours.tokens)]
        problem = _difference(ours, tokens, reason, logprobs)
        if problem:
            tally.mismatches.append(f"scenario {seed}, request {index}: {problem}")


def _difference(
    ours: Got, tokens: list[int], reason: FinishReason | None, logprobs: list[TokenLogprobs | None]
) -> str | None:
    if ours.tokens != tokens:
        return f"tokens {ours.tokens}, alone {tokens}"
    if ours.reason is not reason:
        return f"finish reason {ours.reason}, alone {reason}"
    for mine, theirs in zip(ours.logprobs, logprobs, strict=False):
        if theirs is None or mine.token_ids != theirs.token_ids or mine.rank != theirs.rank:
            return f"logprobs {mine}, alone {theirs}"
    return None


def _run(scenario: Scenario, executor: Executor) -> tuple[list[Got], SchedulerStats]:
    core = EngineCore.create(scenario.config, executor, MonotonicClock(), NullRecorder())
    got = [Got() for _ in scenario.requests]
    pending = sorted(range(len(got)), key=lambda i: scenario.requests[i].arrive_step)
    gone: set[int] = set()
    try:
        for step in range(MAX_STEPS):
            while pending and scenario.requests[pending[0]].arrive_step <= step:
                core.add_request(_core_request(pending[0], scenario.requests[pending.pop(0)]))
            leaving = [
                i for i, r in enumerate(scenario.requests) if r.abort_step == step and got[i].reason is None
            ]
            core.abort_requests([str(i) for i in leaving])
            gone.update(leaving)
            for output in core.step().outputs:
                if int(output.request_id) in gone:
                    continue
                mine = got[int(output.request_id)]
                mine.tokens += output.new_token_ids
                mine.logprobs += output.logprobs or []
                mine.reason = output.finish_reason
            if not pending and not core.has_work():
                break
        else:
            raise RuntimeError(f"scenario {scenario.seed}: still running after {MAX_STEPS} steps")
        stats = core.stats()
        if stats.kv_blocks_used or stats.num_running or stats.num_waiting:
            raise RuntimeError(f"scenario {scenario.seed}: something was left behind: {stats}")
        return got, stats
    finally:
        core.shutdown()


def _core_request(index: int, spec: RequestSpec) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=str(index),
        external_id=str(index),
        prompt_token_ids=list(spec.prompt),
        params=spec.params,
        eos_token_ids=[EOS],
        arrival_ns=0,
        priority=spec.priority,
        cache_salt=spec.cache_salt,
    )
