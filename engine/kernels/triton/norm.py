"""RMSNorm, with the residual addition before it fused in."""

# ruff: noqa: N803  # constexpr names are capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.launch import norm_config


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr,
    x_stride, out_stride, eps,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = residual_ptr + row * SIZE + columns
        # What the next block adds to is the rounded sum, so the norm is of that.
        rounded = (x + tl.load(residual, mask=inside, other=0.0).to(tl.float32)).to(
            residual_ptr.dtype.element_ty
        )
        tl.store(residual, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + row * out_stride + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside
    )


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> None:
    """``out = rms_norm(x + residual) · weight``; ``residual`` becomes ``x + residual``.

    Args:
        x: [T, H], last dimension contiguous.
        weight: [H].
        eps: added to the mean square.
        out: [T, H], last dimension contiguous; may be ``x``.
        residual: [T, H], contiguous, changed in place; None: nothing is added.

    On paper, e bytes an element: reads x, residual and weight, writes residual and out: 4·T·H·e bytes
    (2·T·H·e without residual), about 5·T·H FLOP: bound by memory. Sums in float32.
    """
    rows, size = x.shape
    if rows == 0:
        return
    config = norm_config(size)
    rms_norm_kernel[(rows,)](
        x, x if residual is None else residual, weight, out,
        x.stride(0), out.stride(0), eps,
        SIZE=size, BLOCK=triton.next_power_of_2(size), HAS_RESIDUAL=residual is not None,
        num_warps=config.num_warps,
    )  # fmt: skip
