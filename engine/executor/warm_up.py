"""A first step before the first request: what is slow once is slow before the engine is ready."""

from __future__ import annotations

from engine.executor.base import Executor
from engine.plan import NewRequest, StepPlan
from engine.sampling_params import SamplingParams

_REQUEST_ID = "warm-up"


def warm_up(executor: Executor, num_tokens: int, block_size: int) -> None:
    """Prefill ``num_tokens`` tokens, decode one, leave the batch. Everything is written to the null block."""
    token_ids = [0] * num_tokens
    blocks = [0] * -(-(num_tokens + 1) // block_size)
    request = NewRequest(
        request_id=_REQUEST_ID,
        token_ids=token_ids,
        num_prompt_tokens=num_tokens,
        params=SamplingParams(temperature=0.0, max_tokens=2),
        eos_token_ids=(),
        block_ids=blocks,
        num_computed_tokens=0,
    )
    executor.execute(_plan([request], num_tokens, 0))
    executor.execute(_plan([], 1, num_tokens))
    executor.execute(StepPlan(0, [], {}, {}, {}, [], [_REQUEST_ID], []))


def _plan(new_requests: list[NewRequest], scheduled: int, computed: int) -> StepPlan:
    return StepPlan(
        step_id=0,
        new_requests=new_requests,
        new_block_ids={},
        num_scheduled_tokens={_REQUEST_ID: scheduled},
        num_computed_tokens={_REQUEST_ID: computed},
        samples=[_REQUEST_ID],
        finished_request_ids=[],
        preempted_request_ids=[],
    )
