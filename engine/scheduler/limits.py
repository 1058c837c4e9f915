"""What can be served at all: a request that can never fit is refused at entry, so that none waits forever."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.messages import EngineCoreRequest


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``max_request_tokens`` is the most prompt plus output tokens of one request: the smaller of
    ``max_model_len`` and the KV pool.

    A prompt must leave room for one output token, else it is refused. Output is another matter:
    ``max_tokens`` may exceed the room (as in vLLM), and such a request ends with ``length`` when the room
    is used up. So a request that runs alone never outgrows the pool, and preemption always makes
    progress.
    """

    max_request_tokens: int
    reason: str
    """Which of the two binds, in words."""

    @classmethod
    def of(cls, config: EngineConfig, num_usable_kv_tokens: int) -> RequestLimits:
        """
        Raises:
            InvalidInputError: with ``enable_chunked_prefill`` off, a request could exceed the token
                budget of a step.
        """
        pool = f"the KV cache holds {num_usable_kv_tokens} tokens"
        if config.max_model_len is not None and config.max_model_len <= num_usable_kv_tokens:
            limits = cls(config.max_model_len, f"max_model_len is {config.max_model_len}")
        else:
            limits = cls(num_usable_kv_tokens, pool)
        if not config.enable_chunked_prefill and config.max_num_batched_tokens < limits.max_request_tokens:
            raise InvalidInputError(
                "max_num_batched_tokens",
                config.max_num_batched_tokens,
                f"at least {limits.max_request_tokens} when enable_chunked_prefill is off ({limits.reason})",
            )
        return limits

    def max_total_tokens(self, request: EngineCoreRequest) -> int:
        """Prompt plus output tokens at which ``request`` ends.

        Raises:
            InvalidInputError: it can never be served as asked.
        """
        num_prompt = len(request.prompt_token_ids)
        max_tokens, min_tokens = request.params.max_tokens, request.params.min_tokens
        if num_prompt == 0:
            raise InvalidInputError("prompt", [], "at least one token")
        if num_prompt >= self.max_request_tokens:
            raise InvalidInputError(
                "prompt",
                f"{num_prompt} tokens",
                f"at most {self.max_request_tokens - 1} tokens, one is left for the output ({self.reason})",
            )
        try:
            array("q", request.prompt_token_ids)
        except (OverflowError, TypeError):
            raise InvalidInputError("prompt", "token ids", "integers in the model's vocabulary") from None
        if max_tokens is not None and max_tokens < 1:
            raise InvalidInputError("max_tokens", max_tokens, "at least 1")
        room = self.max_request_tokens - num_prompt
        if max_tokens is not None:
            room = min(room, max_tokens)
        if min_tokens > room:
            raise InvalidInputError(
                "min_tokens", min_tokens, f"at most {room}, the room left for the output ({self.reason})"
            )
        return num_prompt + room
