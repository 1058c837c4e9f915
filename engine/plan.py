"""Plan and result of one step: the whole contract between scheduler and executor. Plain data, no tensors.

The executor keeps a persistent batch: it knows a request's tokens, sampling parameters and block table from
``new_requests`` and extends them itself (sampled tokens, ``new_block_ids``). So a plan never repeats what was
sent, and the next step can be planned before the current one's tokens are known (async scheduling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import TokenLogprobs
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that enters the batch, for the first time or again after a preemption.

    ``token_ids`` are all tokens known at this moment (prompt, and output when it resumes);
    ``num_prompt_tokens`` says where the prompt ends. ``num_computed_tokens`` of them already have KV
    (prefix cache). ``block_ids`` cover computed + scheduled.
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    eos_token_ids: Sequence[int]
    block_ids: Sequence[int]
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes.

    Each request in ``num_scheduled_tokens`` advances by that many tokens from its computed mark. It
    samples one token when the advance reaches its last known token (``samples`` lists these, in batch
    order). Requests that leave the batch are named in ``finished_request_ids`` and
    ``preempted_request_ids`` before anything of this step is applied. A request that ends while it is
    preempted is named as finished, too: the executor may still keep something of it.
    """

    step_id: int
    new_requests: Sequence[NewRequest]
    new_block_ids: dict[str, list[int]]
    """Only running requests that were given blocks in this step."""
    num_scheduled_tokens: dict[str, int]
    """In batch order."""
    num_computed_tokens: dict[str, int]
    """Computed mark of each scheduled request before this step."""
    samples: Sequence[str]
    finished_request_ids: Sequence[str]
    preempted_request_ids: Sequence[str]

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class StepResult:
    """What an executor returns. Stamps are monotonic ns of the executor's clock; None = not measured."""

    step_id: int
    sampled_token_ids: dict[str, int]
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs | None]] = field(default_factory=dict)
    """Complete lists, of requests whose prompt was finished in this step."""
    t_prepare_ns: int | None = None
    """End of input preparation."""
    t_forward_ns: int | None = None
    """End of the model's forward."""
    t_sample_ns: int | None = None
    """End of sampling."""
    gpu_forward_ns: int | None = None
    """Length of the forward by the device's own clock; None: not measured, or nothing waited for it."""
