"""Logprobs as users see them: of the model's raw logits, before penalties, bias, masks and temperature
(vLLM's ``raw_logprobs``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.messages import TokenLogprobs


def gather_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num: int) -> list[TokenLogprobs]:
    """Logprobs of ``token_ids`` and of the ``num`` best tokens at each position.

    Args:
        logits: float32 [R, V], raw.
        token_ids: R chosen (or prompt) tokens.
        num: 0 = the chosen token only; N = the N best as well; -1 = the whole vocabulary.

    Returns:
        R entries: the chosen token first, then the best in falling order. ``rank`` is 1 + the number of
        tokens with a strictly higher logprob, so tied best tokens all have rank 1. NaN is reported as -inf.
    """
    if not token_ids:
        return []
    vocab_size = logits.shape[-1]
    logprobs = torch.log_softmax(logits, dim=-1).nan_to_num_(
        nan=float("-inf"), posinf=0.0, neginf=float("-inf")
    )
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen_logprobs = logprobs.gather(1, chosen)
    ranks = ((logprobs > chosen_logprobs).sum(dim=-1) + 1).tolist()
    own = chosen_logprobs.squeeze(1).tolist()
    count = vocab_size if num == -1 else min(num, vocab_size)
    if count == 0:
        return [
            TokenLogprobs([token], [value], rank)
            for token, value, rank in zip(token_ids, own, ranks, strict=True)
        ]
    if count == vocab_size:
        best_values, best_ids = logprobs.sort(dim=-1, descending=True, stable=True)
    else:
        best_values, best_ids = logprobs.topk(count, dim=-1)
    return [
        TokenLogprobs([token, *ids], [value, *values], rank)
        for token, value, rank, ids, values in zip(
            token_ids, own, ranks, best_ids.tolist(), best_values.tolist(), strict=True
        )
    ]
