"""Hand-made plans and a backend that records its inputs: no model, exact expectations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.models.backend import ForwardBatch
from engine.plan import NewRequest, StepPlan
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
VOCAB_SIZE = 50


def new(
    request_id: str,
    token_ids: Sequence[int],
    block_ids: Sequence[int],
    *,
    num_prompt_tokens: int | None = None,
    computed: int = 0,
    params: SamplingParams = GREEDY,
) -> NewRequest:
    prompt = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    return NewRequest(request_id, list(token_ids), prompt, params, [0], list(block_ids), computed)


def plan(
    step_id: int,
    scheduled: dict[str, tuple[int, int]],
    samples: Sequence[str] = (),
    *,
    new_requests: Sequence[NewRequest] = (),
    blocks: dict[str, list[int]] | None = None,
    finished: Sequence[str] = (),
    preempted: Sequence[str] = (),
) -> StepPlan:
    """``scheduled`` maps a request to (computed tokens, tokens of this step)."""
    return StepPlan(
        step_id=step_id,
        new_requests=list(new_requests),
        new_block_ids=blocks or {},
        num_scheduled_tokens={name: count for name, (_, count) in scheduled.items()},
        num_computed_tokens={name: computed for name, (computed, _) in scheduled.items()},
        samples=list(samples),
        finished_request_ids=list(finished),
        preempted_request_ids=list(preempted),
    )


@dataclass
class SuccessorBackend:
    """After token t comes t + 1 (modulo the vocabulary), with a margin; keeps every batch it was given."""

    name: str = "successor"
    vocab_size: int = VOCAB_SIZE
    batches: list[ForwardBatch] = field(default_factory=list)
    num_blocks: int = 0

    def kv_bytes_per_block(self) -> int:
        return 1024

    def allocate_kv(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        tokens = batch.input_ids[batch.logits_indices]
        logits = torch.zeros(len(tokens), VOCAB_SIZE)
        logits[torch.arange(len(tokens)), (tokens + 1) % VOCAB_SIZE] = 5.0
        return logits
