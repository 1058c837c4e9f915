"""A core on virtual time over the oracle executor, and short ways to say what it should do."""

from __future__ import annotations

from typing import Any

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.messages import EngineCoreOutput, EngineCoreRequest
from engine.plan import StepPlan
from engine.sampling_params import SamplingParams
from engine.scheduler.scheduler import Scheduler
from engine.trace.recorder import ListRecorder
from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from tests.scheduler.oracle import EOS, OracleExecutor, solo

MAX_STEPS = 20_000
"""More than any test needs: beyond it the scheduler makes no progress."""


def make_request(
    request_id: str,
    prompt: int | list[int],
    max_tokens: int | None = 4,
    *,
    priority: int = 0,
    arrival_ns: int = 0,
    cache_salt: str | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """``prompt`` as tokens, or as a length: then its tokens differ from those of other request ids."""
    if isinstance(prompt, int):
        base = sum(map(ord, request_id)) * 1000
        prompt = [base + position for position in range(prompt)]
    params.setdefault("ignore_eos", True)
    return EngineCoreRequest(
        request_id=request_id,
        external_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, **params),
        eos_token_ids=[EOS],
        arrival_ns=arrival_ns,
        priority=priority,
        cache_salt=cache_salt,
    )


class Harness:
    """Args are those of :class:`EngineConfig`, besides ``num_blocks``, which counts usable blocks
    (without the null block).
    """

    def __init__(self, num_blocks: int = 64, **config: Any) -> None:
        config.setdefault("block_size", 4)
        config.setdefault("max_num_seqs", 16)
        config.setdefault("max_num_batched_tokens", 64)
        self.config = EngineConfig.create(check_invariants=True, **config)
        self.executor = OracleExecutor(
            num_blocks + 1,
            self.config.block_size,
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
        )
        self.trace = ListRecorder()
        self.clock = VirtualClock()
        self.core = EngineCore.create(self.config, self.executor, self.clock, self.trace)
        self.requests: dict[str, EngineCoreRequest] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    @property
    def scheduler(self) -> Scheduler:
        return self.core.scheduler

    def add(self, *args: Any, **kwargs: Any) -> EngineCoreRequest:
        return self.add_request(make_request(*args, **kwargs))

    def add_request(self, request: EngineCoreRequest) -> EngineCoreRequest:
        self.core.add_request(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        return request

    def step(self) -> list[EngineCoreOutput]:
        self.clock.advance_ns(1)
        outputs = self.core.step().outputs
        for output in outputs:
            self.outputs[output.request_id].append(output)
        return outputs

    def plan(self) -> dict[str, int]:
        """Run a step; what it scheduled."""
        self.step()
        return dict(self.last_plan.num_scheduled_tokens)

    @property
    def last_plan(self) -> StepPlan:
        return self.executor.plans[-1]

    def drain(self) -> None:
        """Run to the end."""
        for _ in range(MAX_STEPS):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"no end after {MAX_STEPS} steps: {self.scheduler.state.running}")

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.new_token_ids]

    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.state.running]

    def waiting(self) -> set[str]:
        return {request.request_id for request in self.scheduler.state.waiting}

    def steps(self) -> list[dict[str, Any]]:
        return [dict(zip([name for name, _ in STEP_COLUMNS], row, strict=True)) for row in self.trace.steps]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        rows = [dict(zip([name for name, _ in EVENT_COLUMNS], row, strict=True)) for row in self.trace.events]
        return [row for row in rows if kind is None or row["kind"] == kind]

    def check_finished(self, request_id: str) -> None:
        """It ended, once, with exactly the tokens, reason and stop token it would have alone."""
        expected = solo(self.requests[request_id], self.core.max_request_tokens)
        last = self.outputs[request_id][-1]
        assert (self.tokens(request_id), last.finish_reason, last.stop_reason) == expected, request_id
        assert [output.finish_reason for output in self.outputs[request_id][:-1]].count(None) == len(
            self.outputs[request_id]
        ) - 1

    def check_all_finished(self) -> None:
        for request_id in self.requests:
            self.check_finished(request_id)
        self.check_idle()

    def check_idle(self) -> None:
        stats = self.core.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
        assert not self.executor.rows
        self.core.check_invariants()
