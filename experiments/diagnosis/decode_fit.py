"""Decode steps as a line in batch and context: ``forward = a + b · batch + c · Σ context``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.diagnosis.bundle import Floats

_BOOTSTRAPS = 200
_BLOCK = 16
"""Steps that follow each other are alike: the bootstrap draws runs of them."""


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """ns. ``low`` and ``high`` bound ``per_token`` (95 %). ``drift`` is the change over the run that batch
    and context do not explain, as a share of the mean step; ``collinear`` is the correlation of batch and
    context.
    """

    fixed: float
    per_request: float
    per_token: float
    low: float
    high: float
    drift: float
    collinear: float
    mean_step: float
    mean_context: float

    @property
    def context_share(self) -> float:
        """Share of the mean decode step that grows with context."""
        return self.per_token * self.mean_context / self.mean_step if self.mean_step else 0.0


@dataclass(frozen=True, slots=True)
class Jump:
    """The cost leaps at a value of ``what`` ("batch" or "context length"): a change of kernel or padding."""

    what: str
    at: float
    share: float
    """Of the mean step."""
    explained: float
    """Share of the line's squared residuals that goes with it."""


def fit_decode(forward: Floats, batch: Floats, context: Floats) -> DecodeFit:
    """Least squares with a block bootstrap; all arrays in order of time, equally long, at least 40."""
    n = len(forward)
    time = np.linspace(-0.5, 0.5, n)
    columns = np.column_stack([np.ones(n), batch, context])
    fixed, per_request, per_token = _solve(columns, forward)
    with_time = _solve(np.column_stack([columns, time]), forward)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_BOOTSTRAPS):
        begins = rng.integers(0, max(1, n - _BLOCK), size=-(-n // _BLOCK))
        rows = (begins[:, None] + np.arange(_BLOCK)[None, :]).ravel()[:n]
        draws.append(_solve(columns[rows], forward[rows])[2])
    low, high = np.quantile(draws, [0.025, 0.975])
    mean = float(forward.mean())
    return DecodeFit(
        fixed=float(fixed),
        per_request=float(per_request),
        per_token=float(per_token),
        low=float(low),
        high=float(high),
        drift=float(with_time[3]) / mean,
        collinear=_correlation(batch, context),
        mean_step=mean,
        mean_context=float(context.mean()),
    )


def find_jump(forward: Floats, batch: Floats, context: Floats) -> Jump | None:
    """The best single leap in batch or in mean context length, on top of the line; None: nothing to split."""
    n = len(forward)
    columns = np.column_stack([np.ones(n), batch, context])
    left = float(((forward - columns @ _solve(columns, forward)) ** 2).sum())
    best: Jump | None = None
    for what, values in (("batch", batch), ("context length", context / np.maximum(batch, 1.0))):
        for at in np.unique(np.quantile(values, np.linspace(0.1, 0.9, 17))):
            above = (values >= at).astype(np.float64)
            if min(above.sum(), n - above.sum()) < 0.08 * n:
                continue
            wide = np.column_stack([columns, above])
            found = _solve(wide, forward)
            rest = float(((forward - wide @ found) ** 2).sum())
            gain = 1.0 - rest / left if left > 0 else 0.0
            if best is None or gain > best.explained:
                best = Jump(what, float(at), float(found[3]) / float(forward.mean()), gain)
    return best


def _solve(columns: Floats, y: Floats) -> Floats:
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-12)
    found, *_ = np.linalg.lstsq(columns / scale, y, rcond=1e-10)
    result: Floats = found / scale
    return result


def _correlation(x: Floats, y: Floats) -> float:
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
