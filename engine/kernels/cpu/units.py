"""Single native kernels, for tests and benchmarks: the code that the model runs, one kernel at a time."""

from __future__ import annotations

import ctypes
import weakref

import torch

from engine.kernels.cpu.build import InstructionSet
from engine.kernels.cpu.library import check, load_library, pointer


def _owned(handle: int | None) -> ctypes.c_void_p:
    if not handle:
        raise MemoryError("native kernels: out of memory")
    return ctypes.c_void_p(handle)


class NativeLinear:
    """``y = x · Wᵀ + b`` with packed weights. ``gated``: ``W`` is gate over up, ``y = silu(gate) · up``.

    Args:
        weight: [n, k], float32 or bfloat16, which is also x's dtype. bias: [n] or None.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        int8: bool = False,
        num_threads: int = 1,
        isa: InstructionSet | None = None,
    ) -> None:
        self._lib = load_library(isa)
        self._dtype = weight.dtype
        self._gated = gated
        self._n, self._k = weight.shape
        self._handle = _owned(
            self._lib.wb_linear_create(
                weight.dtype == torch.bfloat16,
                pointer(weight, weight.dtype),
                pointer(bias, weight.dtype),
                self._n,
                self._k,
                gated,
                int8,
                num_threads,
            )
        )
        weakref.finalize(self, self._lib.wb_linear_free, self._handle)

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """float32 [m, n], or [m, n / 2] in the weights' dtype when gated."""
        if out is None:
            shape = (x.shape[0], self._n // 2 if self._gated else self._n)
            # Poisoned, so that a place that is never written shows.
            out = torch.full(shape, torch.nan, dtype=self._dtype if self._gated else torch.float32)
        status = self._lib.wb_linear_run(self._handle, pointer(x, self._dtype), x.shape[0], out.data_ptr())
        check(status)
        return out


class NativeAttention:
    """Paged attention over own caches of ``num_layers`` layers."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        block_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        *,
        num_layers: int = 1,
        num_threads: int = 1,
        isa: InstructionSet | None = None,
    ) -> None:
        self._lib = load_library(isa)
        self._dtype = dtype
        self._handle = _owned(
            self._lib.wb_attention_create(
                dtype == torch.bfloat16,
                num_heads,
                num_kv_heads,
                head_size,
                block_size,
                num_layers,
                num_blocks,
                num_threads,
            )
        )
        weakref.finalize(self, self._lib.wb_attention_free, self._handle)

    def fill(self, value: float) -> None:
        """Every element of every block, the null block included."""
        self._lib.wb_attention_fill(self._handle, value)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """float32 ``keys``, ``values`` [T, g, D] into ``slots`` int64 [T]."""
        self._lib.wb_attention_write(
            self._handle,
            layer,
            slots.shape[0],
            pointer(slots, torch.int64),
            pointer(keys, torch.float32),
            pointer(values, torch.float32),
        )

    def __call__(
        self,
        query: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        *,
        first_layer: int = 0,
        num_layers: int = 1,
    ) -> torch.Tensor:
        """``query`` [T, h, D] against the caches; the last layer's output [T, h, D]."""
        out = torch.full_like(query, torch.nan)
        status = self._lib.wb_attention_run(
            self._handle,
            first_layer,
            num_layers,
            seq_lens.shape[0],
            block_table.shape[1],
            pointer(query_start_loc, torch.int32),
            pointer(seq_lens, torch.int32),
            pointer(block_table, torch.int32),
            pointer(query, self._dtype),
            out.data_ptr(),
        )
        check(status)
        return out


def native_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype, isa: InstructionSet | None = None
) -> torch.Tensor:
    """float32 ``x`` [T, H] normalised, in ``dtype``."""
    out = torch.full(x.shape, torch.nan, dtype=dtype)
    load_library(isa).wb_rms_norm(
        dtype == torch.bfloat16,
        pointer(x, torch.float32),
        pointer(weight, torch.float32),
        x.shape[0],
        x.shape[1],
        eps,
        out.data_ptr(),
    )
    return out


def native_rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    isa: InstructionSet | None = None,
) -> torch.Tensor:
    """float32 ``x`` [T, D] normalised (with ``norm`` [D]) and rotated to ``positions`` int64 [T]."""
    out = x.clone()
    load_library(isa).wb_rotate(
        pointer(out, torch.float32),
        x.shape[0],
        x.shape[1],
        pointer(positions, torch.int64),
        pointer(cos, torch.float32),
        pointer(sin, torch.float32),
        pointer(norm, torch.float32),
        eps,
    )
    return out
