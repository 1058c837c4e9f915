"""The end of planning: the draft becomes a plan, and progress is advanced as if the step had run.

Only here, after all shares are final, do computed marks move; so nothing has to be rolled back when a
share is taken back, and the next step can be planned without knowing this one's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.plan import NewRequest, StepPlan
from engine.request import Request
from engine.scheduler.draft import Share, StepDraft
from engine.scheduler.state import SchedulerState
from engine.scheduler.step_stats import StepStats
from engine.trace.records import AdmissionStop, EventKind


@dataclass(frozen=True, slots=True)
class CounterMarks:
    """Readings of counters before the step, to tell its own part."""

    evicted: int
    queries: int
    hits: int

    @classmethod
    def read(cls, state: SchedulerState) -> CounterMarks:
        stats = state.kv.stats
        return cls(
            state.kv.pool.num_evicted_blocks,
            stats.queries + stats.resumed_queries,
            stats.hits + stats.resumed_hits,
        )


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A planned step whose result is not in yet."""

    step_id: int
    shares: Sequence[Share]
    num_tokens: int
    num_samples: int
    stats: StepStats


def emit_plan(
    state: SchedulerState, draft: StepDraft, stop: AdmissionStop, before: CounterMarks
) -> tuple[StepPlan, StepInFlight]:
    """Build the plan of ``draft`` and advance its requests."""
    num_scheduled: dict[str, int] = {}
    num_computed: dict[str, int] = {}
    new_block_ids: dict[str, list[int]] = {}
    new_requests: list[NewRequest] = []
    samples: list[str] = []
    num_prefill = prefill_tokens = prefill_sk = prefill_sq2 = prefill_sqsk = 0
    num_decode = decode_sk = 0
    shares = list(draft.shares.values())
    for share in shares:
        request, num_tokens, computed = share.request, share.num_tokens, share.num_computed_tokens
        request_id = request.request_id
        if share.enters:
            new_requests.append(_new_request(request, share))
        elif share.new_block_ids:
            new_block_ids[request_id] = share.new_block_ids
        num_scheduled[request_id] = num_tokens
        num_computed[request_id] = computed
        context = computed + num_tokens
        request.num_computed_tokens = context
        if context == request.num_tokens + request.num_output_placeholders:
            share.samples = True
            samples.append(request_id)
            request.num_output_placeholders += 1
        if num_tokens == 1 and share.samples and computed >= request.num_prompt_tokens:
            num_decode += 1
            decode_sk += context
        else:
            num_prefill += 1
            prefill_tokens += num_tokens
            prefill_sk += context
            prefill_sq2 += num_tokens * num_tokens
            prefill_sqsk += num_tokens * context
            state.record(request, EventKind.SCHEDULED, num_tokens, computed, state.step_id)
    finished_ids, preempted_ids = state.take_departures()
    plan = StepPlan(
        step_id=state.step_id,
        new_requests=new_requests,
        new_block_ids=new_block_ids,
        num_scheduled_tokens=num_scheduled,
        num_computed_tokens=num_computed,
        samples=samples,
        finished_request_ids=finished_ids,
        preempted_request_ids=preempted_ids,
    )
    state.step_id += 1
    pool, after = state.kv.pool, CounterMarks.read(state)
    stats = StepStats(
        num_prefill_reqs=num_prefill,
        num_decode_reqs=num_decode,
        prefill_tokens=prefill_tokens,
        decode_tokens=num_decode,
        prefill_sum_sk=prefill_sk,
        prefill_sum_sq2=prefill_sq2,
        prefill_sum_sqsk=prefill_sqsk,
        decode_sum_sk=decode_sk,
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        admission_stop=stop.value,
        kv_used=pool.num_used_blocks,
        kv_free=pool.num_free_blocks - pool.num_free_cached_blocks,
        kv_cached=pool.num_free_cached_blocks,
        kv_evicted=after.evicted - before.evicted,
        prefix_query_tokens=after.queries - before.queries,
        prefix_hit_tokens=after.hits - before.hits,
        num_preempted=draft.num_preempted,
        preempted_tokens=draft.preempted_tokens,
    )
    return plan, StepInFlight(plan.step_id, shares, prefill_tokens + num_decode, len(samples), stats)


def _new_request(request: Request, share: Share) -> NewRequest:
    request.in_batch = True
    resumed = request.num_tokens > request.num_prompt_tokens
    return NewRequest(
        request_id=request.request_id,
        # The executor may read the list in another thread while output is appended here: a resumed
        # request gets a copy.
        token_ids=list(request.all_token_ids) if resumed else request.prompt_token_ids,
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        eos_token_ids=sorted(request.eos_token_ids),
        block_ids=share.new_block_ids,
        num_computed_tokens=share.num_computed_tokens,
    )
