"""Who waits, who runs, and the only three ways to change that besides entry: start, preempt, finish."""

from __future__ import annotations

from bisect import insort

from engine.clock import Clock
from engine.config import EngineConfig
from engine.kv.manager import KVCacheManager
from engine.messages import FinishReason
from engine.request import Request, RequestStatus
from engine.scheduler.draft import StepDraft
from engine.scheduler.queue import create_waiting_queue, priority_key
from engine.trace.recorder import TraceRecorder
from engine.trace.records import EventKind


class SchedulerState:
    """Shared by the passes of the scheduler. A request is in exactly one of ``waiting`` and ``running``
    until it is finished.
    """

    def __init__(self, config: EngineConfig, kv: KVCacheManager, clock: Clock, trace: TraceRecorder) -> None:
        self.config = config
        self.kv = kv
        self.clock = clock
        self.trace = trace
        self.requests: dict[str, Request] = {}
        """Every unfinished request, in the order of entry."""
        self.waiting = create_waiting_queue(config.scheduling_policy)
        self.running: list[Request] = []
        """Best first in policy order, so the victim of a preemption is always the last one."""
        self.finished_ids: list[str] = []
        """Ended since the last plan, and the executor has seen it (in the batch or before a preemption)."""
        self.preempted_ids: list[str] = []
        """Left the batch since the last plan, will come back."""
        self.num_preemptions = 0
        self.step_id = 0
        """Id of the next plan."""

    @property
    def by_priority(self) -> bool:
        return self.config.scheduling_policy == "priority"

    def enter(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self.record(request, EventKind.QUEUED, request.num_prompt_tokens, request.submitted_ns)

    def start(self, request: Request) -> None:
        """From waiting to running."""
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        if self.by_priority:
            insort(self.running, request, key=_rank)
        else:
            self.running.append(request)

    def preempt(self, request: Request, draft: StepDraft | None = None) -> None:
        """Take back a running request's KV, and its share of the step under construction; it waits, first
        of its rank.

        What its finished steps wrote stays findable until reused, so a resume mostly finds its own
        prefix. A token that is in flight stays its own: it does not depend on the KV any more.
        """
        self.running.remove(request)
        lost = request.num_computed_tokens
        self.kv.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.put_back(request)
        if request.in_batch:
            request.in_batch = False
            self.preempted_ids.append(request.request_id)
        self.num_preemptions += 1
        if draft is not None:
            draft.undo(request)
            draft.num_preempted += 1
            draft.preempted_tokens += lost
        self.record(request, EventKind.PREEMPTED, lost)

    def finish(self, request: Request, reason: FinishReason, stop_reason: int | None) -> None:
        """End a request, whatever it does. A running one must be dropped from ``running`` by the caller,
        who may drop many at once.
        """
        if request.status is not RequestStatus.RUNNING:
            self.waiting.remove(request)
        self.kv.free(request)
        del self.requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        if (
            request.in_batch or request.num_preemptions
        ):  # the executor has seen it, and may keep something of it
            request.in_batch = False
            if request.request_id in self.preempted_ids:  # no plan has said so yet: it leaves once
                self.preempted_ids.remove(request.request_id)
            self.finished_ids.append(request.request_id)
        self.record(request, EventKind.FINISHED, request.num_output_tokens, detail=reason.value)

    def drop_finished_from_running(self) -> None:
        self.running = [request for request in self.running if request.status is RequestStatus.RUNNING]

    def take_departures(self) -> tuple[list[str], list[str]]:
        """Ids for the next plan: finished, preempted."""
        departures = self.finished_ids, self.preempted_ids
        self.finished_ids, self.preempted_ids = [], []
        return departures

    def record(
        self,
        request: Request,
        kind: EventKind,
        tokens: int | None = None,
        value: int | None = None,
        step_id: int | None = None,
        detail: str | None = None,
    ) -> None:
        """Event into the trace, in the order of :data:`engine.trace.records.EVENT_COLUMNS`."""
        if self.trace.enabled:
            self.trace.record_event(
                (
                    self.clock.now_ns(),
                    request.external_id,
                    request.request_id,
                    kind.value,
                    step_id,
                    tokens,
                    value,
                    detail,
                )
            )


def _rank(request: Request) -> tuple[int, int, int]:
    """Order in ``running``: as in the queue, but being preempted once is no merit any more."""
    priority, _, arrival_ns, order = priority_key(request)
    return priority, arrival_ns, order
