"""What a step of this run costs, fitted from its own steps: fixed part, per token, per context, per
attention pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from experiments.diagnosis.bundle import Floats, RunBundle

_TRIM = 0.05
"""Share of the steps with the largest residuals that the second fit leaves out: pauses are no cost."""
MIN_STEPS = 20


@dataclass(frozen=True, slots=True)
class StepModel:
    """ns = fixed + per_token · tokens + per_kv · Σ context of decodes + per_pair · Σ query · context.

    ``explained`` is the share of the variance that it explains, 1 when steps don't vary.
    """

    fixed: float
    per_token: float
    per_kv: float
    per_pair: float
    explained: float

    def fixed_share(self, duration_ns: Floats) -> float:
        """Share of the fixed part in these steps: what a larger batch would not pay again."""
        total = float(duration_ns.sum())
        return min(1.0, self.fixed * len(duration_ns) / total) if total else 0.0


def fit_step_model(bundle: RunBundle) -> StepModel | None:
    """Non-negative least squares over the measured steps; None with too few of them."""
    chosen = bundle.measured_steps
    steps = bundle.steps
    y = steps.duration[chosen]
    if len(y) < MIN_STEPS:
        return None
    columns = np.column_stack(
        [
            np.ones(len(y)),
            steps.tokens[chosen],
            steps["decode_sum_sk"][chosen],
            steps["prefill_sum_sqsk"][chosen],
        ]
    )
    coefficients = _fit(columns, y)
    residual = np.abs(y - columns @ coefficients)
    kept = residual <= np.quantile(residual, 1 - _TRIM)
    coefficients = _fit(columns[kept], y[kept])
    spread = float(((y[kept] - y[kept].mean()) ** 2).sum())
    left = float(((y[kept] - columns[kept] @ coefficients) ** 2).sum())
    explained = 1.0 - left / spread if spread > 0 else 1.0
    fixed, per_token, per_kv, per_pair = (float(c) for c in coefficients)
    return StepModel(fixed, per_token, per_kv, per_pair, explained)


def _fit(columns: Floats, y: Floats) -> Floats:
    scale = np.maximum(columns.max(axis=0), 1.0)
    found, _ = nnls(columns / scale, y)
    result: Floats = found / scale
    return result
