"""Sampling that only queues work: no wait, no copy, the same tokens as :mod:`engine.sampling`.

Rows that want logprobs, masks, bias or penalties are not for here: the host's sampler does them.
Where a row is cut is found by bisection in float32 (:mod:`engine.kernels.triton.sampling`), the host's
sampler sorts and sums in float64: the last kept token can differ when its share of the mass is within
rounding, and tokens tied at the cut are all kept.
"""

from __future__ import annotations

import torch

from engine.kernels.triton.sampling import top_k_top_p_threshold
from engine.sampling.draw import draw_full


def sample_on_device(
    logits: torch.Tensor, inputs: dict[str, torch.Tensor], *, all_greedy: bool, any_cut: bool
) -> torch.Tensor:
    """One token a row, int64 [S].

    Args:
        logits: float32 [S, V]; overwritten.
        inputs: ``noise``, ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``greedy``, [S] or longer.
        all_greedy, any_cut: whether every row takes its best token; whether any has top_k, top_p or min_p.
    """
    rows = logits.shape[0]
    best = logits.nan_to_num(nan=float("-inf")).argmax(dim=-1)
    if all_greedy:
        return best
    probs = torch.softmax(logits.div_(inputs["temperature"][:rows].unsqueeze(1)), dim=-1)
    # softmax spreads a NaN, a +inf or an all -inf row over the whole row: one element tells.
    broken = probs[:, 0].isnan()
    probs = probs.masked_fill(broken.unsqueeze(1), 1.0)
    if any_cut:
        threshold, mass = torch.empty_like(probs[:, 0]), torch.empty_like(probs[:, 0])
        top_k_top_p_threshold(
            probs, inputs["top_k"][:rows], inputs["top_p"][:rows], inputs["min_p"][:rows], threshold, mass
        )
        probs = probs.masked_fill(probs < threshold.unsqueeze(1), 0.0)
    drawn = draw_full(probs, inputs["noise"][:rows])
    return torch.where(inputs["greedy"][:rows].bool() | broken, best, drawn)
