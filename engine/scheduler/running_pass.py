"""First pass of a step: running requests catch up; who gets no KV block takes it from the last one in
policy order.
"""

from __future__ import annotations

from engine.request import Request
from engine.scheduler.draft import StepDraft
from engine.scheduler.state import SchedulerState


def num_wanted_tokens(request: Request) -> int:
    """Tokens between progress and target, tokens in flight included; 0 if what is in flight is certain to
    reach the length limit.
    """
    placeholders = request.num_output_placeholders
    if placeholders and request.num_tokens + placeholders >= request.max_total_tokens:
        return 0
    return request.num_tokens + placeholders - request.num_computed_tokens


def cap_prefill(num_tokens: int, state: SchedulerState) -> int:
    """Apply ``long_prefill_token_threshold``, which means something only when prompts may be cut into
    chunks.
    """
    threshold = state.config.long_prefill_token_threshold
    if threshold and state.config.enable_chunked_prefill:
        return min(num_tokens, threshold)
    return num_tokens


def schedule_running(state: SchedulerState, draft: StepDraft) -> None:
    """Plan running requests in policy order.

    A prefill chunk leaves one token of the budget to every request behind it that decodes: the budget is
    at least ``max_num_seqs``, so a decoding request never misses a step because of somebody's prompt.

    The victim of a preemption is the last in policy order. It is planned after everyone else, so it has
    no share yet; when the asking request is the last one itself, it gives way.
    """
    running = state.running
    decodes_behind = sum(1 for request in running if num_wanted_tokens(request) == 1)
    index = 0
    while index < len(running) and draft.budget > 0:
        request = running[index]
        wanted = num_wanted_tokens(request)
        if wanted == 1:
            decodes_behind -= 1
            num_tokens = 1
        else:
            num_tokens = min(cap_prefill(wanted, state), draft.budget - decodes_behind)
            if num_tokens <= 0:
                index += 1
                continue
        new_block_ids = state.kv.allocate_slots(request, num_tokens)
        if new_block_ids is None:
            new_block_ids = _allocate_by_preemption(state, draft, request, num_tokens)
            if new_block_ids is None:
                break
            decodes_behind = sum(1 for other in running[index + 1 :] if num_wanted_tokens(other) == 1)
        draft.add(request, num_tokens, new_block_ids, enters=False)
        index += 1


def _allocate_by_preemption(
    state: SchedulerState, draft: StepDraft, request: Request, num_tokens: int
) -> list[int] | None:
    """Preempt from the end of ``running`` until ``request`` gets its slots; None: it was the last one and
    gave way itself.
    """
    while True:
        victim = state.running[-1]
        state.preempt(victim, draft)
        if victim is request:
            return None
        new_block_ids = state.kv.allocate_slots(request, num_tokens)
        if new_block_ids is not None:
            return new_block_ids
