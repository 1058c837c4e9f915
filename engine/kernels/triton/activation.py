"""SiLU(gate) · up, the middle of a SwiGLU block."""

# ruff: noqa: N803  # constexpr names are capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.launch import SILU_BLOCK, SILU_WARPS


@triton.jit
def silu_and_mul_kernel(x_ptr, out_ptr, x_stride, out_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + size + columns, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * out_stride + columns, value.to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor) -> None:
    """``out = silu(x[:, :I]) · x[:, I:]``.

    Args:
        x: [T, 2I], last dimension contiguous: gate, then up.
        out: [T, I], last dimension contiguous.

    On paper: reads 2·T·I·e, writes T·I·e bytes, about 5·T·I FLOP: bound by memory. Computed in float32.
    """
    rows, size = out.shape
    if rows == 0:
        return
    block = min(SILU_BLOCK, triton.next_power_of_2(size))
    silu_and_mul_kernel[(rows, triton.cdiv(size, block))](
        x, out, x.stride(0), out.stride(0), size, BLOCK=block, num_warps=SILU_WARPS
    )
