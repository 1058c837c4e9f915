"""Discrete-event simulation: the engine's own scheduler on virtual time, against a cost model.

Latencies are pure functions of (code, requests, cost model): two runs are equal to the nanosecond, so a
change of one number is a change of behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.errors import InvalidInputError
from engine.executor.sim import CostModel, SimExecutor, TokenModel
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestTimings, SchedulerStats
from engine.sampling_params import SamplingParams
from engine.trace.recorder import ListRecorder
from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS

DEFAULT_NUM_KV_BLOCKS = 4096


@dataclass(frozen=True, slots=True)
class SimRequest:
    """A request that arrives ``offset_ns`` after the start."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    offset_ns: int = 0
    priority: int = 0
    cache_salt: str | None = None


@dataclass(slots=True)
class SimRequestResult:
    """What became of a request. Times in ns since the start of the simulation; None: it never happened."""

    request_id: str
    arrival_ns: int
    token_ids: list[int] = field(default_factory=list)
    token_times_ns: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    finished_ns: int | None = None
    timings: RequestTimings | None = None
    error: str | None = None
    """Why it was refused at entry."""

    @property
    def ttft_ns(self) -> int | None:
        """Arrival to first token."""
        return self.token_times_ns[0] - self.arrival_ns if self.token_times_ns else None

    @property
    def e2el_ns(self) -> int | None:
        """Arrival to last token."""
        return self.token_times_ns[-1] - self.arrival_ns if self.token_times_ns else None

    @property
    def itl_ns(self) -> list[int]:
        """Gaps between tokens."""
        times = self.token_times_ns
        return [later - earlier for earlier, later in pairwise(times)]


@dataclass(frozen=True, slots=True)
class SimResult:
    """Requests in the order given; steps and events as dicts with the names of the trace's tables."""

    requests: list[SimRequestResult]
    steps: list[dict[str, int | str | None]]
    events: list[dict[str, int | str | None]]
    stats: SchedulerStats
    end_ns: int


def simulate(
    config: EngineConfig,
    requests: Sequence[SimRequest],
    cost_model: CostModel | None = None,
    *,
    token_model: TokenModel | None = None,
) -> SimResult:
    """Serve ``requests`` on virtual time until all have ended.

    Args:
        config: as for the engine; the pool has ``num_gpu_blocks_override`` blocks (default
            :data:`DEFAULT_NUM_KV_BLOCKS`). With ``async_scheduling`` a step is planned one step ahead.
        requests: in any order; a request that can never be served is refused, the rest goes on.
        cost_model: what a step costs.
        token_model: what is sampled, and when a request ends by itself.
    """
    clock, trace = VirtualClock(), ListRecorder()
    tokens = token_model or TokenModel()
    executor = SimExecutor(config.num_gpu_blocks_override or DEFAULT_NUM_KV_BLOCKS, clock, cost_model, tokens)
    core = EngineCore.create(config, executor, clock, trace)
    results = {
        request.request_id: SimRequestResult(request.request_id, request.offset_ns) for request in requests
    }
    if len(results) != len(requests):
        raise InvalidInputError("requests", f"{len(requests)} requests", "ids that differ from each other")
    arrivals = sorted(requests, key=lambda request: request.offset_ns)
    eos = [] if tokens.eos_token_id is None else [tokens.eos_token_id]
    arrived = 0
    while arrived < len(arrivals) or core.has_work():
        if not core.has_work():
            clock.advance_to_ns(arrivals[arrived].offset_ns)
        while arrived < len(arrivals) and arrivals[arrived].offset_ns <= clock.now_ns():
            _enter(core, arrivals[arrived], eos, results[arrivals[arrived].request_id])
            arrived += 1
        for output in core.step().outputs:
            _note(results[output.request_id], output, clock.now_ns())
    stats = core.stats()
    core.shutdown()
    return SimResult(
        [results[request.request_id] for request in requests],
        [dict(zip((name for name, _ in STEP_COLUMNS), row, strict=True)) for row in trace.steps],
        [dict(zip((name for name, _ in EVENT_COLUMNS), row, strict=True)) for row in trace.events],
        stats,
        clock.now_ns(),
    )


def _enter(core: EngineCore, request: SimRequest, eos: list[int], result: SimRequestResult) -> None:
    try:
        core.add_request(
            EngineCoreRequest(
                request_id=request.request_id,
                external_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                params=request.params,
                eos_token_ids=eos,
                arrival_ns=request.offset_ns,
                priority=request.priority,
                cache_salt=request.cache_salt,
            )
        )
    except InvalidInputError as error:
        result.error = str(error)
        result.finish_reason = FinishReason.ERROR


def _note(result: SimRequestResult, output: EngineCoreOutput, now_ns: int) -> None:
    result.token_ids += output.new_token_ids
    result.token_times_ns += [now_ns] * len(output.new_token_ids)
    result.num_cached_tokens = output.num_cached_tokens
    if output.finish_reason is not None:
        result.finish_reason = output.finish_reason
        result.finished_ns = now_ns
        result.timings = output.timings
