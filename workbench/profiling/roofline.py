"""What a decode step must at least take: its bytes over the machine's bandwidth, beside what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What one decode step reads: the weights once, and the KV of every request."""

    weights: int
    kv_per_token: float

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ModelBytes:
        """``info``: :class:`engine.executor.info.ExecutorInfo` as plain data. Scales of int8 are left out."""
        model = info["model_config"]
        hidden, inner = model["hidden_size"], model["intermediate_size"]
        q, kv = model["num_heads"] * model["head_size"], model["num_kv_heads"] * model["head_size"]
        layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * inner
        elements = model["num_layers"] * layer + model["vocab_size"] * hidden
        size = 1 if info["quantization"] == "int8" else _BYTES[info["dtype"]]
        kv_tokens = info["num_kv_blocks"] * info["block_size"]
        return cls(elements * size, info["kv_cache_bytes"] / kv_tokens)

    def floor_ns(self, batch: int, context: int, read_gb_s: float) -> float:
        """Bytes over bandwidth."""
        return (self.weights + batch * context * self.kv_per_token) / read_gb_s


@dataclass(frozen=True, slots=True)
class Line:
    """``step = fixed + per_request · batch + per_token · Σ context``, ns, by least squares over the cells;
    ``efficiency`` is bytes over bandwidth of one token of context over ``per_token``.
    """

    fixed: float
    per_request: float
    per_token: float
    floor_per_token: float
    worst_residual: float
    """Largest relative miss of a cell: large where no line fits (a change of kernel)."""

    @property
    def efficiency(self) -> float | None:
        return self.floor_per_token / self.per_token if self.per_token > 0 else None


def grid_rows(cells: Sequence[Any], size: ModelBytes, read_gb_s: float) -> list[dict[str, Any]]:
    """One row per cell: median and least time, the floor, and the share of the floor that it reaches."""
    rows = []
    for cell in cells:
        middle, floor = median(cell.times_ns), size.floor_ns(cell.batch, cell.context, read_gb_s)
        rows.append(
            {"batch": cell.batch, "context": cell.context, "n": len(cell.times_ns), "median_ms": middle / 1e6,
             "min_ms": min(cell.times_ns) / 1e6, "floor_ms": floor / 1e6, "of_roofline": floor / middle,
             "tokens_s": cell.batch / middle * 1e9}
        )  # fmt: skip
    return rows


def fit_line(rows: Sequence[Mapping[str, Any]], size: ModelBytes, read_gb_s: float) -> Line | None:
    """None with fewer than four cells, or with one batch size or one context only."""
    if len(rows) < 4 or len({r["batch"] for r in rows}) < 2 or len({r["context"] for r in rows}) < 2:
        return None
    took = np.array([r["median_ms"] * 1e6 for r in rows])
    columns = np.array([[1.0, r["batch"], r["batch"] * r["context"]] for r in rows])
    weights = 1.0 / took  # relative errors: small cells count as much as large ones
    found, *_ = np.linalg.lstsq(columns * weights[:, None], np.ones(len(rows)), rcond=None)
    misses = np.abs(columns @ found - took) / took
    fixed, per_request, per_token = (float(value) for value in found)
    return Line(fixed, per_request, per_token, size.kv_per_token / read_gb_s, float(misses.max()))
