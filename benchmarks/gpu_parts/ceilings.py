"""The two ceilings that everything else is a share of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_parts.bench import Bench


def measure_ceilings(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Copy bandwidth (bytes read and written) and the rate of a large bf16 matrix product, on random data:
    zeros draw less power and run faster."""
    size = (1 << 20) if bench.fake else (2 << 30)
    side = 64 if bench.fake else 8192
    copy_ms = _copy_ms(bench, size)
    a = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    b = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    out = torch.empty_like(a)
    matmul_ms = bench.time_ms(lambda: torch.matmul(a, b, out=out), 20, flush=False)
    yield (
        "ceilings",
        {
            "copy_gb_s": round(2 * size / copy_ms / 1e6, 1),
            "bf16_tflop_s": round(2.0 * side**3 / matmul_ms / 1e9, 4 if bench.fake else 1),
        },
    )


def _copy_ms(bench: Bench, size: int) -> float:
    source = torch.empty(size, dtype=torch.uint8, device=bench.device).random_()
    target = torch.empty_like(source)
    return bench.time_ms(lambda: target.copy_(source), 20, flush=False)
