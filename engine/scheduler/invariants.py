"""What must hold for the scheduler between any two calls (the list follows vLLM's design, as assertions
any engine can make).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.kv.invariants import check_kv_invariants, require
from engine.request import RequestStatus
from engine.scheduler.emit import StepInFlight
from engine.scheduler.state import SchedulerState


def check_scheduler_invariants(state: SchedulerState, in_flight: Iterable[StepInFlight]) -> None:
    """
    Raises:
        InvariantError: naming the first invariant that does not hold.
    """
    config, kv = state.config, state.kv
    waiting = {request.request_id: request for request in state.waiting}
    running = {request.request_id: request for request in state.running}
    require(len(waiting) == len(state.waiting), "a request waits twice")
    require(len(running) == len(state.running), "a request runs twice")
    require(not waiting.keys() & running.keys(), "a request waits and runs")
    require(
        waiting.keys() | running.keys() == state.requests.keys(),
        "a request neither waits nor runs, or is finished and does",
    )
    require(
        len(running) <= config.max_num_seqs,
        f"{len(running)} requests run, max_num_seqs={config.max_num_seqs}",
    )
    in_flight_samples: Counter[int] = Counter()
    for step in in_flight:
        num_tokens = sum(share.num_tokens for share in step.shares)
        require(
            num_tokens == step.num_tokens <= config.max_num_batched_tokens,
            f"step {step.step_id} exceeds its budget",
        )
        in_flight_samples.update(id(share.request) for share in step.shares if share.samples)
    for request in state.requests.values():
        placeholders = request.num_output_placeholders
        require(
            placeholders == in_flight_samples[id(request)],
            f"{request!r}: placeholders differ from samples in flight",
        )
        require(request.num_tokens < request.max_total_tokens, f"{request!r} should have ended")
        require(
            request.num_computed_tokens <= request.num_tokens + placeholders,
            f"{request!r} is ahead of its tokens",
        )
    for request in waiting.values():
        expected = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        require(request.status is expected, f"{request!r} waits")
        require(request.num_computed_tokens == 0, f"{request!r} waits with progress")
        require(request.request_id not in kv.tables, f"{request!r} waits with KV blocks")
        require(not request.in_batch, f"{request!r} waits inside the batch")
    for request in running.values():
        require(request.status is RequestStatus.RUNNING, f"{request!r} runs")
        require(
            kv.num_blocks_of(request) == kv.num_blocks_for(request.num_computed_tokens),
            f"{request!r}: {kv.num_blocks_of(request)} blocks do not match its progress",
        )
    check_kv_invariants(kv, state.requests)
