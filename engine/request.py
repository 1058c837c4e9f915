"""A request inside the core: what was asked, how far it got, what it holds. Mutable, owned by the
scheduler.
"""

from __future__ import annotations

from enum import Enum

from engine.messages import EngineCoreRequest, FinishReason, RequestTimings


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again: its KV was given up and will be recomputed
    FINISHED = "finished"


class Request:
    """Progress is ``num_computed_tokens`` (positions whose KV is written or planned), the target is
    ``num_tokens``.

    ``num_output_placeholders`` counts tokens that a planned step will sample but whose values are not
    known here yet. In synchronous scheduling it is 1 between plan and update; in asynchronous scheduling
    the next step is planned on top of it.

    Args:
        core_request: the front end's request.
        max_total_tokens: prompt plus output tokens at which the request ends with ``length``.
        order: running number, ties are broken by it.
        queued_ns: when the scheduler got it.
    """

    __slots__ = (
        "all_token_ids",
        "arrival_ns",
        "block_hashes",
        "cache_salt",
        "eos_token_ids",
        "external_id",
        "finish_reason",
        "first_token_ns",
        "in_batch",
        "last_token_ns",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "order",
        "params",
        "priority",
        "prompt_token_ids",
        "queued_ns",
        "request_id",
        "scheduled_ns",
        "status",
        "stop_reason",
        "stop_token_ids",
        "submitted_ns",
    )

    def __init__(
        self, core_request: EngineCoreRequest, *, max_total_tokens: int, order: int, queued_ns: int
    ) -> None:
        self.request_id = core_request.request_id
        self.external_id = core_request.external_id
        self.params = core_request.params
        self.priority = core_request.priority
        self.cache_salt = core_request.cache_salt
        self.arrival_ns = core_request.arrival_ns
        self.submitted_ns = core_request.submitted_ns
        self.queued_ns = queued_ns
        self.order = order
        self.max_total_tokens = max_total_tokens
        self.eos_token_ids = (
            frozenset() if core_request.params.ignore_eos else frozenset(core_request.eos_token_ids)
        )
        self.stop_token_ids = frozenset(core_request.params.stop_token_ids)

        self.prompt_token_ids = core_request.prompt_token_ids
        self.num_prompt_tokens = len(core_request.prompt_token_ids)
        self.all_token_ids = list(core_request.prompt_token_ids)
        self.num_tokens = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_cached_tokens = -1  # until first scheduled
        self.num_preemptions = 0
        self.block_hashes: list[bytes] = []
        self.in_batch = False
        """The executor knows it: it entered in a plan and no plan has named it as gone."""

        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.scheduled_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Prompt logprobs need logits at every prompt position, and a cached position has none."""
        return self.params.prompt_logprobs is not None

    def append_output_token(self, token_id: int, now_ns: int) -> None:
        self.all_token_ids.append(token_id)
        self.num_tokens += 1
        if self.first_token_ns is None:
            self.first_token_ns = now_ns
        self.last_token_ns = now_ns

    def timings(self) -> RequestTimings:
        return RequestTimings(
            arrival_ns=self.arrival_ns,
            queued_ns=self.queued_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=self.first_token_ns,
            last_token_ns=self.last_token_ns,
            num_preemptions=self.num_preemptions,
        )

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, computed={self.num_computed_tokens}, "
            f"tokens={self.num_tokens}+{self.num_output_placeholders})"
        )
