"""A step under construction. Until it is emitted, every share in it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import Request


@dataclass(slots=True)
class Share:
    """What one request gets in one step.

    ``epoch`` is the request's preemption count when it was planned: if it has grown when the result
    arrives, the KV that the step wrote no longer belongs to the request (its sampled token is still
    good).
    """

    request: Request
    num_tokens: int
    num_computed_tokens: int
    new_block_ids: list[int]
    enters: bool
    epoch: int
    samples: bool = False


class StepDraft:
    """Shares in batch order, the token budget that is left, and what preemption cost.

    Args:
        budget: tokens that the step may compute.
    """

    __slots__ = ("budget", "gave_way", "num_preempted", "preempted_tokens", "shares")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.shares: dict[str, Share] = {}
        self.num_preempted = 0
        self.preempted_tokens = 0
        self.gave_way: set[str] = set()
        """Ids of requests that were preempted to admit one of higher rank."""

    def add(self, request: Request, num_tokens: int, new_block_ids: list[int], *, enters: bool) -> None:
        self.shares[request.request_id] = Share(
            request, num_tokens, request.num_computed_tokens, new_block_ids, enters, request.num_preemptions
        )
        self.budget -= num_tokens

    def undo(self, request: Request) -> None:
        """Take back the whole share of a request, if it has one: its tokens return to the budget."""
        share = self.shares.pop(request.request_id, None)
        if share is not None:
            self.budget += share.num_tokens
