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
        line = probs[row].cpu().numpy()
        kept_ids, kept_probs = kept_tokens(line, int(top_k[row]), float(top_p[row]), float(min_p[row]))
        place = int(pick(torch.from_numpy(kept_probs).unsqueeze(0), u[row : row + 1].cpu()))
        tokens[row] = int(kept_ids[place])
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
    before = functional.pad(cdf[:, :-1], (1, 0))
    kept &= (before < (top_p * mass).unsqueeze(1)) | (place == 0) | ~uses_top_p.unsqueeze(1)
    kept_count = kept.sum(dim=-1)
    if count == vocab:
        return kept, torch.ones_like(uses_top_p)
    mass_known = ~uses_top_p | ~is_cut | (first_cut < count)
    last = values.gather(1, (kept_count - 1).unsqueeze(1))
    following = values.gather(1, kept_count.clamp_max(count - 1).unsqueeze(1))
    return kept, (kept_count < count) & mass_known & (last != following).squeeze(1)


def kept_tokens(
    probs: F32Array, top_k: int, top_p: float, min_p: float
) -> tuple[npt.NDArray[np.int64], F64Array]:
    """What :func:`draw_truncated` keeps of one row (float32 [V]; same arguments), however many tokens that
    are.

    Returns:
        Ids in rising order, and their probabilities.
    """
    vocab = len(probs)
    is_cut = top_k < vocab or min_p > 0
    if not is_cut:
        # The tokens below this floor hold at most half of what top_p cuts off. So the cut lies above it (but
        # for rounding: then it is looked for again), and most of a real model's vocabulary is not sorted.
        ids = np.flatnonzero(probs >= np.float32((1.0 - top_p) / (2 * vocab)))
        values = probs[ids]
        count, last = _cut_falling(values, vocab, top_p, 1.0)
        if count < len(ids):
            return _take(ids, values, count, last)
    # float64, as in _cut: numpy would round min_p times the maximum to float32
    ids = np.flatnonzero((probs >= np.float64(min_p) * np.float64(probs.max())) & (probs > 0))
    values = probs[ids]
    count, last = _cut_falling(values, top_k, top_p, None if is_cut else 1.0)
    return _take(ids, values, count, last)


def _cut_falling(values: F32Array, top_k: int, top_p: float, mass: float | None) -> tuple[int, np.float32]:
    """How many of ``values`` are kept in falling order, and the last of them. ``mass`` None: that of the
    ``top_k`` first.
    """
    # numpy sorts float32 by vector instructions, in a hundredth of torch's time
    falling = np.sort(values)[::-1][:top_k]
    if top_p >= 1.0:
        return len(falling), falling[-1]
    cdf = falling.cumsum(dtype=np.float64)
    limit = top_p * (cdf[-1] if mass is None else mass)
    count = 1 + int(np.searchsorted(cdf[:-1], limit))
    return count, falling[count - 1]


def _take(
    ids: npt.NDArray[np.int64], values: F32Array, count: int, last: np.float32
) -> tuple[npt.NDArray[np.int64], F64Array]:
    """The ``count`` first by falling value, ties (at ``last``) by rising id; in the order of ``ids``."""
    places = np.flatnonzero(values >= last)
    if len(places) > count:
        ties = np.flatnonzero(values[places] == last)
        places = np.delete(places, ties[count - len(places) :])
    return ids[places], values[places].astype(np.float64)
