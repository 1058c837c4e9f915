"""An executor without a model: a step costs what a cost model says, tokens are a function of prompt, seed
and position.

With it the very scheduler of the real engine runs on virtual time, thousands of steps a second, without
torch.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass

from engine.clock import Clock, VirtualClock
from engine.errors import EngineError
from engine.plan import NewRequest, StepPlan, StepResult

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class CostModel:
    """Nanoseconds of a step, linear in what a step does. Defaults are of the order of a small model on a
    few CPU cores.

    ``base`` + ``per_token`` · tokens + ``per_kv`` · Σ context length of decoding requests +
    ``per_attention`` · Σ query · context of prefills + ``per_request`` · requests.
    """

    base_ns: float = 1_000_000.0
    per_token_ns: float = 100_000.0
    per_kv_ns: float = 100.0
    per_attention_ns: float = 5.0
    per_request_ns: float = 20_000.0

    def step_ns(self, plan: StepPlan) -> int:
        """Cost of ``plan``; one that computes nothing is free."""
        if not plan.num_scheduled_tokens:
            return 0
        num_tokens = sum_kv = attention = 0
        for request_id, query_len in plan.num_scheduled_tokens.items():
            context_len = plan.num_computed_tokens[request_id] + query_len
            num_tokens += query_len
            if query_len == 1:
                sum_kv += context_len
            else:
                attention += query_len * context_len
        cost = (
            self.base_ns
            + self.per_token_ns * num_tokens
            + self.per_kv_ns * sum_kv
            + self.per_attention_ns * attention
            + self.per_request_ns * len(plan.num_scheduled_tokens)
        )
        return round(cost)


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Pseudo-random tokens that depend on (prompt, seed, position) only, as a real engine's do.

    Args:
        vocab_size: tokens are in [0, vocab_size).
        eos_token_id: the token that ends a request; None: it is never drawn.
        eos_every: the eos token is drawn once in so many positions on average.
    """

    vocab_size: int = 32_000
    eos_token_id: int | None = None
    eos_every: int = 100

    def key(self, prompt_token_ids: list[int], seed: int | None) -> int:
        """What a sequence's tokens depend on besides the position."""
        return zlib.crc32(array("q", prompt_token_ids).tobytes()) ^ ((seed or 0) << 32)

    def token(self, key: int, position: int) -> int:
        """Token at ``position`` (0 = first of the prompt) of the sequence with ``key``."""
        bits = _mix(key + position * 0x9E3779B97F4A7C15)
        if self.eos_token_id is None:
            return bits % self.vocab_size
        if bits % self.eos_every == 0:
            return self.eos_token_id
        token = (bits >> 20) % (self.vocab_size - 1)
        return token + (token >= self.eos_token_id)


def _mix(bits: int) -> int:
    """The finaliser of SplitMix64 (Steele et al. 2014)."""
    bits &= _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


@dataclass(slots=True)
class _SimRequest:
    key: int
    num_tokens: int


class SimExecutor:
    """Executes plans by moving a clock.

    Args:
        num_kv_blocks: blocks of the pool, the null block included.
        clock: a :class:`VirtualClock` is advanced by each step's cost; on a real clock steps take no time.
        cost_model: what a step costs.
        token_model: what is sampled.
    """

    def __init__(
        self,
        num_kv_blocks: int,
        clock: Clock,
        cost_model: CostModel | None = None,
        token_model: TokenModel | None = None,
    ) -> None:
        self._num_kv_blocks = num_kv_blocks
        self._clock = clock
        self._cost_model = cost_model or CostModel()
        self._token_model = token_model or TokenModel()
        self._requests: dict[str, _SimRequest] = {}

    @property
    def num_kv_blocks(self) -> int:
        return self._num_kv_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        """
        Raises:
            EngineError: the plan names a request that is not in the batch.
        """
        for request_id in plan.finished_request_ids:
            self._requests.pop(request_id, None)  # None: it ended while it was preempted
        for request_id in plan.preempted_request_ids:
            if self._requests.pop(request_id, None) is None:
                raise EngineError(f"step {plan.step_id}: {request_id!r} is preempted but not in the batch")
        for new in plan.new_requests:
            self._requests[new.request_id] = self._enter(new)
        t_prepare = self._clock.now_ns()
        if isinstance(self._clock, VirtualClock):
            self._clock.advance_ns(self._cost_model.step_ns(plan))
        t_forward = self._clock.now_ns()
        sampled = {request_id: self._sample(plan, request_id) for request_id in plan.samples}
        return StepResult(
            step_id=plan.step_id,
            sampled_token_ids=sampled,
            t_prepare_ns=t_prepare,
            t_forward_ns=t_forward,
            t_sample_ns=self._clock.now_ns(),
        )

    def reset(self) -> None:
        self._requests.clear()

    def shutdown(self) -> None:
        self._requests.clear()

    def _enter(self, new: NewRequest) -> _SimRequest:
        prompt = list(new.token_ids[: new.num_prompt_tokens])
        return _SimRequest(self._token_model.key(prompt, new.params.seed), len(new.token_ids))

    def _sample(self, plan: StepPlan, request_id: str) -> int:
        request = self._requests.get(request_id)
        if request is None:
            raise EngineError(f"step {plan.step_id}: {request_id!r} samples but is not in the batch")
        token = self._token_model.token(request.key, request.num_tokens)
        request.num_tokens += 1
        return token
