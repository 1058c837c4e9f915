"""The scheduler: hands out each step's token budget. No tensors, no model, no time of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.clock import Clock
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError
from engine.kv.manager import KVCacheManager
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, SchedulerStats
from engine.plan import StepPlan, StepResult
from engine.request import Request, RequestStatus
from engine.scheduler.admission import AdmissionPass
from engine.scheduler.draft import Share, StepDraft
from engine.scheduler.emit import CounterMarks, StepInFlight, emit_plan
from engine.scheduler.invariants import check_scheduler_invariants
from engine.scheduler.limits import RequestLimits
from engine.scheduler.running_pass import schedule_running
from engine.scheduler.state import SchedulerState
from engine.scheduler.step_stats import StepStats
from engine.scheduler.stop import check_stop
from engine.trace.recorder import TraceRecorder
from engine.trace.records import EventKind


class Scheduler:
    """One-pass scheduler (the idea of vLLM V1): there is no prefill and no decode phase.

    A request has a target (``num_tokens``) and a progress mark (``num_computed_tokens``); a step hands
    out tokens so that progress catches up. Chunked prefill, prefix hits and resuming after preemption all
    follow from that difference.

    ``schedule`` may be called again before ``update`` (asynchronous scheduling): a token that is planned
    but not yet known counts as a placeholder, and the executor, which keeps the tokens, fills it in.
    Results come back in plan order.

    Args:
        config: ``max_model_len`` None means that only the KV pool limits a request.
        kv: block tables and prefix cache.
        clock: stamps requests and events.
        trace: takes the events of requests.

    Raises:
        InvalidInputError: chunked prefill is off and the token budget is too small for the longest request.
    """

    def __init__(self, config: EngineConfig, kv: KVCacheManager, clock: Clock, trace: TraceRecorder) -> None:
        self.limits = RequestLimits.of(config, kv.num_usable_tokens)
        self.state = SchedulerState(config, kv, clock, trace)
        self.kv = kv
        self._in_flight: deque[StepInFlight] = deque()
        self._next_order = 0
        self._num_steps = 0
        self._last_step_tokens = 0

    @property
    def max_request_tokens(self) -> int:
        """Most prompt plus output tokens of one request, see :class:`RequestLimits`."""
        return self.limits.max_request_tokens

    @property
    def last_planned_stats(self) -> StepStats | None:
        """Of the newest plan that computes anything and has no result yet."""
        return self._in_flight[-1].stats if self._in_flight else None

    def add(self, core_request: EngineCoreRequest) -> None:
        """Queue a request.

        Raises:
            InvalidInputError: it can never be served, or its id is in use. Nothing has changed then.
        """
        if core_request.request_id in self.state.requests:
            raise InvalidInputError(
                "request_id", core_request.request_id, "an id that no unfinished request has"
            )
        request = Request(
            core_request,
            max_total_tokens=self.limits.max_total_tokens(core_request),
            order=self._next_order,
            queued_ns=self.state.clock.now_ns(),
        )
        self.kv.hash_prompt(request)
        self._next_order += 1
        self.state.enter(request)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests in whatever state they are; unknown and finished ids are ignored. Their blocks are
        free at once.

        A step in flight may still compute for them: what it samples is dropped and what it wrote is never
        findable. Blocks may be planned for others meanwhile, because steps run in plan order.
        """
        outputs = []
        for request_id in request_ids:
            request = self.state.requests.get(request_id)
            if request is not None:
                self.state.finish(request, FinishReason.ABORT, None)
                outputs.append(_output(request, []))
        if outputs:
            self.state.drop_finished_from_running()
        return outputs

    def has_unfinished_requests(self) -> bool:
        return bool(self.state.requests)

    def has_work(self) -> bool:
        """A request is unfinished, a step is in flight, or the executor must still be told who left."""
        state = self.state
        return bool(state.requests or self._in_flight or state.finished_ids or state.preempted_ids)

    def has_plannable_work(self) -> bool:
        """As ``has_work``, leaving aside what is only in flight."""
        state = self.state
        return bool(state.requests or state.finished_ids or state.preempted_ids)

    def schedule(self) -> StepPlan:
        """Plan one step: running requests first, then waiting ones.

        Only a plan that computes tokens expects an ``update``; one without has at most departures for the
        executor.
        """
        draft = StepDraft(self.state.config.max_num_batched_tokens)
        before = CounterMarks.read(self.state)
        schedule_running(self.state, draft)
        stop = AdmissionPass(self.state, draft).run()
        plan, step = emit_plan(self.state, draft, stop, before)
        if step.num_tokens:
            self._in_flight.append(step)
            self._num_steps += 1
            self._last_step_tokens = step.num_tokens
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[EngineCoreOutput]:
        """Take in the result of the oldest planned step: tokens, ends, and what can now be found in the
        prefix cache.

        Raises:
            EngineError: the result does not belong to that step or lacks a token. The engine can't go on.
        """
        if not plan.num_scheduled_tokens:
            return []
        if (
            not self._in_flight
            or self._in_flight[0].step_id != plan.step_id
            or result.step_id != plan.step_id
        ):
            raise EngineError(f"result of step {result.step_id} for plan {plan.step_id} is out of order")
        if len(result.sampled_token_ids) != len(plan.samples):
            raise EngineError(
                f"step {plan.step_id}: {len(result.sampled_token_ids)} tokens sampled, "
                f"{len(plan.samples)} planned"
            )
        step = self._in_flight.popleft()
        now_ns = self.state.clock.now_ns()
        outputs: list[EngineCoreOutput] = []
        finished_running = False
        for share in step.shares:
            request = share.request
            if share.samples:
                request.num_output_placeholders -= 1
            if request.status is RequestStatus.FINISHED:
                continue  # aborted or stopped while the step ran
            if share.epoch == request.num_preemptions:
                self.kv.cache_blocks(request, share.num_computed_tokens + share.num_tokens)
            if share.samples:
                was_running = request.status is RequestStatus.RUNNING
                outputs.append(self._take_token(share, result, now_ns))
                finished_running |= was_running and request.is_finished
        if finished_running:
            self.state.drop_finished_from_running()
        return outputs

    def preempt_all(self) -> None:
        """Give up the KV of all running requests; they resume by recomputing."""
        for request in reversed(self.state.running[:]):
            self.state.preempt(request)

    def stats(self) -> SchedulerStats:
        state, prefix = self.state, self.kv.stats
        return SchedulerStats(
            num_running=len(state.running),
            num_waiting=len(state.waiting),
            kv_blocks_total=self.kv.pool.num_usable_blocks,
            kv_blocks_used=self.kv.pool.num_used_blocks,
            num_preemptions=state.num_preemptions,
            prefix_cache_queries=prefix.queries,
            prefix_cache_hits=prefix.hits,
            resumed_prefix_cache_queries=prefix.resumed_queries,
            resumed_prefix_cache_hits=prefix.resumed_hits,
            prompt_tokens_recomputed=prefix.recomputed,
            num_steps=self._num_steps,
            last_step_tokens=self._last_step_tokens,
        )

    def check_invariants(self) -> None:
        """Check every invariant of requests and blocks.

        Raises:
            InvariantError: naming the first that does not hold.
        """
        check_scheduler_invariants(self.state, self._in_flight)

    def _take_token(self, share: Share, result: StepResult, now_ns: int) -> EngineCoreOutput:
        request = share.request
        request_id = request.request_id
        token_id = result.sampled_token_ids.get(request_id)
        if token_id is None:
            raise EngineError(f"step {result.step_id}: no token was sampled for {request!r}")
        first = request.first_token_ns is None
        request.append_output_token(token_id, now_ns)
        if first:
            self.state.record(request, EventKind.FIRST_TOKEN, step_id=result.step_id)
        stop = check_stop(request)
        if stop is not None:
            self.state.finish(request, *stop)
        return _output(request, [token_id], result, first=first)


def _output(
    request: Request, new_token_ids: list[int], result: StepResult | None = None, *, first: bool = False
) -> EngineCoreOutput:
    request_id = request.request_id
    logprobs = prompt_logprobs = None
    if result is not None and request.params.logprobs is not None and request_id in result.logprobs:
        logprobs = [result.logprobs[request_id]]
    if result is not None and first:  # a resumed request may compute them again: they were sent
        prompt_logprobs = result.prompt_logprobs.get(request_id)
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=new_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        timings=request.timings() if first or request.is_finished else None,
    )
