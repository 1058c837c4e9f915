"""Drawing one token a row from probabilities by inverse CDF, with one uniform number a row.

Every function treats rows alone: a row's token is the same whatever stands beside it, bit for bit. That is
why no result here depends on how many candidates were looked at first, and why the only sums over a row are
running sums (in float64) or sums over blocks of fixed length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]

BLOCK = 64
"""Tokens whose probabilities are summed before the first search: a two-level CDF is cheaper, and finer,
than one over V.
"""

CANDIDATES = 128
"""Best tokens of a row that are looked at before the whole row is. Only speed depends on it."""


def pick(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Index of the first running sum above ``u`` times the total.

    Args:
        weights: float64 [R, N], not negative, each row with a positive total.
        u: float64 [R] in [0, 1).

    Returns:
        int64 [R]. An index of weight 0 is never picked.
    """
    cdf = weights.cumsum(dim=-1)
    return _search(cdf, u * cdf[:, -1]).squeeze(1)


def _search(cdf: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First index (int64 [R, 1]) with ``cdf > target``; a target rounded up to the total is brought back
    below it.
    """
    total = cdf[:, -1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(target, below_total).clamp_min(0.0)
    return torch.searchsorted(cdf, target.unsqueeze(1), right=True)


def draw_full(probs: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw from whole rows.

    Args:
        probs: float32 [R, V], contiguous, not negative, each row with a positive finite sum (it need not be
            1).
        u: float64 [R] in [0, 1).

    Returns:
        int64 [R] token ids.
    """
    rows, vocab = probs.shape
    if vocab % BLOCK:
        probs = functional.pad(probs, (0, BLOCK - vocab % BLOCK))
    blocks = probs.view(rows, -1, BLOCK)
    block_cdf = blocks.sum(dim=-1).double().cumsum(dim=-1)
    target = u * block_cdf[:, -1]
    block = _search(block_cdf, target)
    before = torch.where(block > 0, block_cdf.gather(1, (block - 1).clamp_min(0)), 0.0).squeeze(1)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, 1, BLOCK)).squeeze(1).double()
    offset = _search(inside.cumsum(dim=-1), target - before)
    return (block * BLOCK + offset).squeeze(1)


def draw_truncated(
    probs: torch.Tensor, u: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Draw from rows cut by min_p, then top_k, then top_p.

    Tokens stand in falling order of probability, ties by rising id. min_p keeps those with at least
    ``min_p`` times the highest probability; top_k the first k of them; top_p those before which less than
    ``top_p`` of the remaining mass stands (so always the first).

    Args:
        probs: float32 [R, V], each row summing to 1.
        u: float64 [R] in [0, 1).
        top_k: int64 [R], V where off.
        top_p: float64 [R], 1.0 where off.
        min_p: float64 [R], 0.0 where off.

    Returns:
        int64 [R] token ids.
    """
    vocab = probs.shape[1]
    if vocab <= CANDIDATES:
        values, ids = probs.sort(dim=-1, descending=True, stable=True)
    else:
        values, ids = probs.topk(CANDIDATES, dim=-1)
    values = values.double()
    kept, settled = _cut(values, top_k, top_p, min_p, vocab)
    # Drawing in id order makes the outcome independent of how topk orders ties inside the kept set.
    ids, order = ids.sort(dim=-1)
    weights = torch.where(kept, values, 0.0).gather(1, order)
    tokens = ids.gather(1, pick(weights, u).unsqueeze(1)).squeeze(1)
    for row in torch.nonzero(~settled).flatten().tolist():
        cut = cut_row(probs[row].cpu().numpy(), int(top_k[row]), float(top_p[row]), float(min_p[row]))
        tokens[row] = pick(torch.from_numpy(cut).double().unsqueeze(0), u[row : row + 1].cpu()).item()
    return tokens


def _cut(
    values: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the leading ``values`` (float64 [R, N], falling) are kept, and whether N candidates were
    enough to know.

    Not enough: the cut lies at or behind the end, or goes through a tie whose members topk may have chosen
    freely.
    """
    count = values.shape[1]
    place = torch.arange(count, device=values.device)
    kept = (place < top_k.unsqueeze(1)) & (values >= min_p.unsqueeze(1) * values[:, :1]) & (values > 0)
    first_cut = kept.sum(dim=-1)
    cdf = torch.where(kept, values, 0.0).cumsum(dim=-1)
    is_cut = (top_k < vocab) | (min_p > 0)
    mass = torch.where(is_cut, cdf[:, -1], 1.0)
    uses_top_p = top_p < 1.0
    kept &= ((cdf - values) < (top_p * mass).unsqueeze(1)) | (place == 0) | ~uses_top_p.unsqueeze(1)
    kept_count = kept.sum(dim=-1)
    if count == vocab:
        return kept, torch.ones_like(uses_top_p)
    mass_known = ~uses_top_p | ~is_cut | (first_cut < count)
    last = values.gather(1, (kept_count - 1).unsqueeze(1))
    following = values.gather(1, kept_count.clamp_max(count - 1).unsqueeze(1))
    return kept, (kept_count < count) & mass_known & (last != following).squeeze(1)


def cut_row(probs: F32Array, top_k: int, top_p: float, min_p: float) -> F32Array:
    """One row as :func:`draw_truncated` cuts it (same arguments, no candidates): what is cut becomes 0.

    float32 [V] in and out; the time is that of a few passes over the row, whatever its shape.
    """
    # float64, as in _cut: numpy would round min_p times the maximum to float32
    probs = np.where(probs >= np.float64(min_p) * np.float64(probs.max()), probs, np.float32(0))
    if top_k < len(probs):
        probs = _keep_leading(probs, np.ones(len(probs)), top_k)
    if top_p < 1.0:
        weights = probs.astype(np.float64)
        is_cut = top_k < len(probs) or min_p > 0
        probs = _keep_leading(probs, weights, top_p * (weights.sum() if is_cut else 1.0))
    return probs


def _keep_leading(probs: F32Array, weights: F64Array, limit: float) -> F32Array:
    """``probs`` without the tokens before which, in falling order (ties by rising id), ``limit`` of weight or
    more stands.

    No sort over the vocabulary: the upper half of a float32's bits orders positive numbers and gives bins of
    equal relative width (2**-7); only the bin in which the limit is reached is sorted.
    """
    bins = probs.view(np.int32) >> 16
    from_top = np.bincount(bins, weights=weights)[::-1].cumsum()
    above = np.concatenate([from_top[-2::-1], [0.0]])
    border = int(np.argmax(above < limit))
    members = np.flatnonzero(bins == border)
    members = members[np.argsort(-probs[members], kind="stable")]
    inside = weights[members]
    before = above[border] + inside.cumsum() - inside
    kept = np.where(bins >= border, probs, np.float32(0))
    kept[members[before >= limit]] = 0
    return kept
