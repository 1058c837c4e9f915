"""Second pass of a step: waiting requests enter in policy order, until something stops the first of them."""

from __future__ import annotations

from engine.errors import EngineError
from engine.kv.manager import PrefixHit
from engine.request import Request
from engine.scheduler.draft import StepDraft
from engine.scheduler.running_pass import cap_prefill
from engine.scheduler.state import SchedulerState
from engine.trace.records import AdmissionStop, EventKind


class AdmissionPass:
    """Admits waiting requests into one draft.

    Order is strict: if the first one does not fit, nobody passes it (head-of-line blocking is intended,
    as in vLLM: a big request cannot starve). With ``scheduler_reserve_full_isl`` blocks for the rest of
    every running prefill are set aside, so that prompts never preempt each other half-way.
    """

    def __init__(self, state: SchedulerState, draft: StepDraft) -> None:
        self._state = state
        self._draft = draft
        self._kv = state.kv
        self._config = state.config
        self._watermark_blocks = int(state.config.watermark * state.kv.pool.num_usable_blocks)
        self._num_promised_blocks = 0
        self._num_partial_prefills = 0

    def run(self) -> AdmissionStop:
        """Admit until something stops it, and say what."""
        state, draft = self._state, self._draft
        if not len(state.waiting):
            return AdmissionStop.QUEUE_EMPTY
        if draft.num_preempted:  # whoever was preempted would be admitted again at once
            return AdmissionStop.PREEMPTED
        for request in state.running:
            self._count(request, +1)
        while True:
            head = state.waiting.peek()
            if head is None:
                return AdmissionStop.QUEUE_EMPTY
            if draft.budget <= 0:
                return AdmissionStop.TOKEN_BUDGET
            if head.num_output_placeholders or head.request_id in draft.gave_way:
                # Its newest token is in flight and comes with the next result, or it has just made room
                # for a better one.
                return AdmissionStop.PREEMPTED
            stop = self._try_to_admit(head)
            if stop is not None:
                return stop

    def _try_to_admit(self, request: Request) -> AdmissionStop | None:
        hit = self._kv.get_computed_blocks(request)
        wanted = request.num_tokens - hit.num_tokens
        num_tokens = min(cap_prefill(wanted, self._state), self._draft.budget)
        if num_tokens < wanted:
            if not self._config.enable_chunked_prefill:
                return AdmissionStop.TOKEN_BUDGET
            cap = self._config.max_num_partial_prefills
            if cap is not None and self._num_partial_prefills >= cap:
                return AdmissionStop.LONG_PREFILL_CAP
        reserve = self._config.scheduler_reserve_full_isl
        stop = self._make_room(request, hit, request.num_tokens if reserve else hit.num_tokens + num_tokens)
        if stop is None:
            if reserve:  # what victims gave back to the budget goes to the one they gave way to
                num_tokens = min(cap_prefill(wanted, self._state), self._draft.budget)
            self._admit(request, hit, num_tokens)
        return stop

    def _make_room(self, request: Request, hit: PrefixHit, num_tokens: int) -> AdmissionStop | None:
        """See to a seat, and to blocks for ``num_tokens``; None: the request can enter.

        With ``scheduling_policy="priority"`` a request takes the place of running ones of strictly lower
        rank (higher value), the lowest first, but only if that is certain to let it in: nobody loses its
        KV for nothing.
        """
        state = self._state
        num_running = len(state.running)
        left = self._kv.num_free_blocks_after(request, num_tokens, hit)
        promised = self._num_promised_blocks
        hit_ids: set[int] = set()
        num_victims = 0
        first_stop: AdmissionStop | None = None
        while True:
            stop = self._what_lacks(num_running - num_victims, left, promised)
            if stop is None:
                break
            first_stop = first_stop or stop
            if not state.by_priority or num_victims == num_running:
                return first_stop
            victim = state.running[num_running - num_victims - 1]
            if victim.priority <= request.priority:
                return first_stop
            if not num_victims:
                hit_ids = {block.block_id for block in hit.blocks}
            left += self._kv.num_blocks_freed_by(victim, keep=hit_ids)
            promised -= self._num_promised_to(victim)
            num_victims += 1
        for _ in range(num_victims):
            victim = state.running[-1]
            self._count(victim, -1)
            state.preempt(victim, self._draft)
            self._draft.gave_way.add(victim.request_id)
        return None

    def _what_lacks(self, num_others: int, left: int, promised: int) -> AdmissionStop | None:
        """Seat or blocks, beside ``num_others`` running requests, when ``left`` blocks stay free before
        what is set aside.
        """
        if num_others >= self._config.max_num_seqs:
            return AdmissionStop.MAX_NUM_SEQS
        # Alone in the pool a request fits by RequestLimits, and nobody would ever free blocks for it:
        # nothing is set aside.
        set_aside = self._watermark_blocks + promised if num_others else 0
        return AdmissionStop.KV_BLOCKS if left < set_aside else None

    def _admit(self, request: Request, hit: PrefixHit, num_tokens: int) -> None:
        state, step_id = self._state, self._state.step_id
        if self._kv.allocate_slots(request, num_tokens, hit) is None:
            raise EngineError(f"KV blocks for {request!r} were counted as free but are not")
        self._kv.record_lookup(request, hit)
        state.start(request)
        request.num_computed_tokens = hit.num_tokens
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = hit.num_tokens
            request.scheduled_ns = state.clock.now_ns()
            if hit.num_tokens:
                state.record(request, EventKind.PREFIX_HIT, hit.num_tokens, step_id=step_id)
        else:
            state.record(request, EventKind.RESUMED, hit.num_tokens, step_id=step_id)
        self._draft.add(request, num_tokens, self._kv.block_ids(request), enters=True)
        self._count(request, +1)

    def _count(self, request: Request, sign: int) -> None:
        """Keep the sums over running requests true."""
        share = self._draft.shares.get(request.request_id)
        planned = share.num_tokens if share is not None else 0
        if request.num_computed_tokens + planned < request.num_tokens:
            self._num_partial_prefills += sign
            if self._config.scheduler_reserve_full_isl:
                self._num_promised_blocks += sign * self._num_promised_to(request)

    def _num_promised_to(self, request: Request) -> int:
        """Blocks that the rest of a running prefill will need: they were counted when it was admitted."""
        if not self._config.scheduler_reserve_full_isl:
            return 0
        return max(self._kv.num_blocks_for(request.num_tokens) - self._kv.num_blocks_of(request), 0)
