"""When a request ends, as far as the core can see: token ids and lengths. Stop strings are the front
end's.
"""

from __future__ import annotations

from engine.messages import FinishReason
from engine.request import Request


def check_stop(request: Request) -> tuple[FinishReason, int | None] | None:
    """Reason and stop token after the newest output token; None: go on.

    Order as in vLLM: below ``min_tokens`` nothing stops; then eos (``stop``, no stop token),
    ``stop_token_ids`` (``stop`` with the token), then the length limits. So an eos that is also the last
    allowed token ends with ``stop``.
    """
    num_output = request.num_tokens - request.num_prompt_tokens
    if num_output < request.params.min_tokens:
        return None
    token_id = request.all_token_ids[-1]
    if token_id in request.eos_token_ids:
        return FinishReason.STOP, None
    if token_id in request.stop_token_ids:
        return FinishReason.STOP, token_id
    if request.num_tokens >= request.max_total_tokens:
        return FinishReason.LENGTH, None
    return None
