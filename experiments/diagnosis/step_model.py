"""What a step of this run costs, fitted from its own steps: fixed part, per token, per context, per
attention pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from experiments.diagnosis.bundle import Floats, RunBundle, Steps

MIN_STEPS = 20
_ROUNDS = 12
_NEAR = 0.01
"""Relative residual below which a step counts as met: bounds the weights."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """ns = fixed + per_token · tokens + per_kv · Σ context of decodes + per_pair · Σ query · context."""

    fixed: float
    per_token: float
    per_kv: float
    per_pair: float

    def cost_ns(self, steps: Steps) -> Floats:
        """Of each step, without what happened to slow it down."""
        coefficients = np.array([self.fixed, self.per_token, self.per_kv, self.per_pair])
        found: Floats = _columns(steps) @ coefficients
        return found

    def fixed_share(self, cost_ns: Floats) -> float:
        """Share of the fixed part in steps of this cost: what a larger batch would not pay again."""
        total = float(cost_ns.sum())
        return min(1.0, self.fixed * len(cost_ns) / total) if total else 0.0


def fit_step_model(bundle: RunBundle) -> StepModel | None:
    """Least absolute relative errors over the measured steps, no coefficient below 0; None with too few.

    Relative, because a busy machine slows a step down by a share of its length: else few long steps decide
    about the fixed part, which shows in the short ones. Absolute, because pauses are no cost: half of the
    steps may be disturbed before they decide.
    """
    steps = bundle.steps
    chosen = bundle.measured_steps & (steps.duration > 0)
    if int(chosen.sum()) < MIN_STEPS:
        return None
    columns = _columns(steps)[chosen] / steps.duration[chosen][:, None]
    return StepModel(*(float(c) for c in _fit(columns)))


def _columns(steps: Steps) -> Floats:
    return np.column_stack(
        [np.ones(len(steps)), steps.tokens, steps["decode_sum_sk"], steps["prefill_sum_sqsk"]]
    )


def _fit(columns: Floats) -> Floats:
    """``columns @ x ≈ 1`` in absolute errors, by reweighted least squares."""
    weights = np.ones(len(columns))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        weighted = columns * weights[:, None]
        scale = np.maximum(weighted.max(axis=0), 1e-30)
        solution, _ = nnls(weighted / scale, weights)
        found = solution / scale
        weights = 1.0 / np.sqrt(np.maximum(np.abs(1.0 - columns @ found), _NEAR))
    return found
