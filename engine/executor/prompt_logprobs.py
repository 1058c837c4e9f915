"""Prompt logprobs: which positions a step scores, and the lists while a prompt takes several steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import TokenLogprobs
from engine.plan import NewRequest


@dataclass(frozen=True, slots=True)
class PromptSlice:
    """What a step scores of a prompt: packed rows from ``first_row`` on predict ``target_ids``."""

    request_id: str
    first_row: int
    first_position: int
    target_ids: Sequence[int]
    num_logprobs: int
    completes: bool

    @property
    def rows(self) -> range:
        return range(self.first_row, self.first_row + len(self.target_ids))


@dataclass(slots=True)
class _Pending:
    prompt_token_ids: list[int]
    num_logprobs: int
    scores: list[TokenLogprobs | None]


class PromptLogprobs:
    """Collects the prompt logprobs of every request that asked for them, entry 0 of a list being None.

    A list survives a preemption in the middle of the prompt: recomputed positions are filled in again.
    """

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, request: NewRequest) -> None:
        """Note a request that asks for prompt logprobs and has not delivered them (it has no output yet)."""
        num = request.params.prompt_logprobs
        delivered = len(request.token_ids) > request.num_prompt_tokens
        if num is None or delivered or request.request_id in self._pending:
            return
        prompt = list(request.token_ids[: request.num_prompt_tokens])
        self._pending[request.request_id] = _Pending(prompt, num, [None] * len(prompt))

    def remove(self, request_id: str) -> None:
        self._pending.pop(request_id, None)

    def clear(self) -> None:
        self._pending.clear()

    def slice(self, request_id: str, computed: int, scheduled: int, first_row: int) -> PromptSlice | None:
        """What to score when ``scheduled`` tokens from ``computed`` on run at packed row ``first_row``."""
        pending = self._pending.get(request_id)
        if pending is None:
            return None
        prompt = pending.prompt_token_ids
        end = min(computed + scheduled, len(prompt) - 1)  # the prompt's last token predicts no prompt token
        completes = computed + scheduled >= len(prompt)
        targets = prompt[computed + 1 : end + 1]
        return PromptSlice(request_id, first_row, computed + 1, targets, pending.num_logprobs, completes)

    def record(self, part: PromptSlice, scores: Sequence[TokenLogprobs]) -> list[TokenLogprobs | None] | None:
        """Store the scores of ``part``; the whole list when the prompt is complete."""
        pending = self._pending[part.request_id]
        pending.scores[part.first_position : part.first_position + len(scores)] = scores
        if not part.completes:
            return None
        del self._pending[part.request_id]
        return pending.scores
