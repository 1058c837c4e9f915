"""The parallel layers as functions; with :data:`engine.parallel.group.SOLO` they are the plain ones.

A column-parallel layer needs no function: it is ``F.linear`` with this rank's rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.parallel.group import RankGroup


def embed(input_ids: torch.Tensor, weight: torch.Tensor, group: RankGroup) -> torch.Tensor:
    """Rows of the embedding. ``input_ids`` int64 [T], ``weight`` this rank's rows [ceil(V / size), H] →
    [T, H]: ranks that do not hold a token's row add zeros.
    """
    if group.size == 1:
        return F.embedding(input_ids, weight)
    local = input_ids - group.rank * weight.shape[0]
    outside = (local < 0) | (local >= weight.shape[0])
    rows = F.embedding(local.masked_fill(outside, 0), weight)
    return group.all_reduce(rows.masked_fill(outside.unsqueeze(-1), 0.0))


def row_parallel(x: torch.Tensor, weight: torch.Tensor, group: RankGroup) -> torch.Tensor:
    """``x`` [T, in / size] times this rank's columns [out, in / size], summed over ranks → [T, out]."""
    return group.all_reduce(F.linear(x, weight))


def head(x: torch.Tensor, weight: torch.Tensor, group: RankGroup, vocab_size: int) -> torch.Tensor:
    """Logits of the whole vocabulary, float32 [R, V], on every rank: all of them sample, and all alike."""
    logits = group.all_gather(F.linear(x, weight))
    return logits[:, :vocab_size].float()
