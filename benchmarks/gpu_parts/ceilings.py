"""The two ceilings that everything else is a share of."""

from __future__ import annotations

import torch

from benchmarks.gpu_parts.bench import Bench, Ceilings


def measure_ceilings(bench: Bench) -> Ceilings:
    """Copy bandwidth (bytes read and written) and the rate of a large bf16 matrix product, on random data:
    zeros draw less power and run faster."""
    size = (1 << 20) if bench.fake else (2 << 30)
    copy_ms = _copy_ms(bench, size)
    side = 64 if bench.fake else 8192
    a = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    b = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    out = torch.empty_like(a)
    matmul_ms = bench.time_ms(lambda: torch.matmul(a, b, out=out), 20, flush=False)
    return Ceilings(2 * size / copy_ms / 1e6, 2.0 * side**3 / matmul_ms / 1e9)


def _copy_ms(bench: Bench, size: int) -> float:
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    return bench.time_ms(lambda: target.copy_(source), 20, flush=False)
