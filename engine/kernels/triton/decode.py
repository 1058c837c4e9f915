"""Paged decode attention: one query a row, context split over programs (flash-decoding), then a reduction.

Dao et al., "Flash-Decoding for long-context inference", 2023; paging as in vLLM (Kwon et al., SOSP 2023).
"""

# ruff: noqa: N803  # constexpr names are capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton import launch
from engine.kernels.triton.fp8 import load_cells
from engine.kernels.triton.launch import decode_config
from engine.kernels.triton.platform import FP8_NONE, current_platform

LOG2_E = math.log2(math.e)


@triton.jit
def split_context(
    seq_len, TILE_N: tl.constexpr, NUM_SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, WINDOW: tl.constexpr
):
    """First token that is seen, at a tile's edge, and how many tokens from there on each split takes."""
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(seq_len - WINDOW, 0) // TILE_N * TILE_N
    share = (seq_len - begin + NUM_SPLITS - 1) // NUM_SPLITS
    return begin, tl.maximum((share + TILE_N - 1) // TILE_N * TILE_N, MIN_SPLIT)


@triton.jit(do_not_specialize=["table_stride"])
def decode_attention_kernel(
    q_ptr, key_cache_ptr, value_cache_ptr, out_ptr, partial_ptr, lse_ptr,
    block_table_ptr, seq_len_ptr, query_start_ptr, k_scale_ptr, v_scale_ptr,
    score_scale, q_stride, out_stride, table_stride, block_stride, head_stride, slot_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    FP8: tl.constexpr, WIDE_DOT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    query = tl.load(query_start_ptr + row).to(tl.int64)
    if tl.load(query_start_ptr + row + 1) != query + 1:
        return
    seq_len = tl.load(seq_len_ptr + row)
    low, share = split_context(seq_len, TILE_N, NUM_SPLITS, MIN_SPLIT, WINDOW)
    high = seq_len
    if NUM_SPLITS > 1:
        low += split * share
        high = tl.minimum(low + share, seq_len)
        if low >= high:
            return

    heads = tl.arange(0, TILE_M)
    dims = tl.arange(0, BLOCK_D)
    in_group = heads < GROUP
    in_head = dims < HEAD_SIZE
    head = kv_head * GROUP + heads
    q = tl.load(
        q_ptr + query * q_stride + head[:, None] * HEAD_SIZE + dims[None, :],
        mask=in_group[:, None] & in_head[None, :],
        other=0.0,
    )
    if WIDE_DOT:
        q = q.to(tl.float32)
    factor = score_scale
    if FP8 > 0:
        factor = score_scale * tl.load(k_scale_ptr + kv_head)

    best = tl.full([TILE_M], float("-inf"), tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    acc = tl.zeros([TILE_M, BLOCK_D], tl.float32)
    offsets_n = tl.arange(0, TILE_N)
    table = block_table_ptr + row.to(tl.int64) * table_stride
    head_base = kv_head.to(tl.int64) * head_stride
    for start in range(low, high, TILE_N):
        token = start + offsets_n
        seen = token < high
        if WINDOW > 0:
            seen = seen & (token >= seq_len - WINDOW)
        block = tl.load(table + token // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        place = head_base + block * block_stride + (token % BLOCK_SIZE) * slot_stride
        # Only slots of the context are read: the others may hold NaN.
        held = seen[:, None] & in_head[None, :]
        cells = place[:, None] + dims[None, :]
        k = load_cells(key_cache_ptr + cells, held, FP8)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * factor
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        decay = tl.exp2(best - higher)
        total = total * decay + tl.sum(weights, axis=1)
        v = load_cells(value_cache_ptr + cells, held, FP8)
        acc = acc * decay[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        best = higher

    # A row without context (padding of a captured graph) gives 0, not 0/0.
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    if FP8 > 0:
        acc = acc * tl.load(v_scale_ptr + kv_head)
    kept = in_group[:, None] & in_head[None, :]
    if NUM_SPLITS == 1:
        target = out_ptr + query * out_stride + head[:, None] * HEAD_SIZE + dims[None, :]
        tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=kept)
    else:
        line = (row.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * NUM_SPLITS + split
        tl.store(partial_ptr + line[:, None] * HEAD_SIZE + dims[None, :], acc, mask=kept)
        tl.store(lse_ptr + line, best + tl.log2(total), mask=in_group)


@triton.jit
def decode_reduce_kernel(
    partial_ptr, lse_ptr, out_ptr, seq_len_ptr, query_start_ptr, out_stride,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, TILE_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    query = tl.load(query_start_ptr + row).to(tl.int64)
    if tl.load(query_start_ptr + row + 1) != query + 1:
        return
    seq_len = tl.load(seq_len_ptr + row)
    begin, share = split_context(seq_len, TILE_N, NUM_SPLITS, MIN_SPLIT, WINDOW)
    used = (seq_len - begin + share - 1) // share

    splits = tl.arange(0, NUM_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    is_used = splits < used
    in_head = dims < HEAD_SIZE
    line = (row.to(tl.int64) * tl.num_programs(1) + head) * NUM_SPLITS + splits
    lse = tl.load(lse_ptr + line, mask=is_used, other=float("-inf"))
    # With no split used the highest would be -inf, and the weights NaN.
    highest = tl.where(used > 0, tl.max(lse, axis=0), 0.0)
    weights = tl.exp2(lse - highest)
    total = tl.sum(weights, axis=0)
    parts = tl.load(
        partial_ptr + line[:, None] * HEAD_SIZE + dims[None, :],
        mask=is_used[:, None] & in_head[None, :],
        other=0.0,
    )
    value = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    target = out_ptr + query * out_stride + head * HEAD_SIZE + dims
    tl.store(target, value.to(out_ptr.dtype.element_ty), mask=in_head)


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """What the splits leave for the reduction: flat float32 buffers, contents never read before written."""

    partial: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def allocate(
        cls, num_rows: int, num_heads: int, head_size: int, num_splits: int, device: torch.device
    ) -> DecodeWorkspace:
        """Room for ``num_rows`` rows with ``num_splits`` splits each (or fewer of more)."""
        lines = num_rows * num_heads * num_splits
        return cls(
            torch.empty(lines * head_size, dtype=torch.float32, device=device),
            torch.empty(lines, dtype=torch.float32, device=device),
        )


def decode_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    num_splits: int,
    workspace: DecodeWorkspace | None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sliding_window: int = 0,
    min_split_tokens: int | None = None,
) -> None:
    """Attention of every row that has exactly one query token; the other rows' outputs aren't touched.

    Args:
        q: [T, h, D], heads contiguous (a view of the projection's output will do).
        key_cache, value_cache: [num_blocks, g, block_size, D], same strides; uint8 = e4m3fn bits.
        block_table: int32 [B, max_blocks], last dimension contiguous; entries behind the context aren't read.
        seq_lens: int32 [B], the new token included; 0: output 0.
        query_start_loc: int32 [B + 1].
        out: [T, h, D], heads contiguous.
        scale: of the scores, 1/√D.
        num_splits: a power of two; see :func:`engine.kernels.triton.launch.decode_splits`.
        workspace: for ``num_splits`` > 1, room for B rows.
        k_scale, v_scale: float32 [g], needed for a uint8 cache.
        sliding_window: tokens that a query sees, itself included; 0: all.
        min_split_tokens: a split has at least this much context, so short rows use fewer splits; None: as
            :func:`engine.kernels.triton.launch.min_split_tokens` says.

    On paper, S = Σ seq_lens, c bytes a cache element: reads 2·S·g·D·c bytes (every K and V once for its whole
    group) plus queries and outputs, 2·B·h·D·e; with splits s, writes and reads back B·h·s·(D + 1)·4 bytes.
    4·S·h·D FLOP, so 2·h/(g·c) FLOP a byte: bound by memory bandwidth up to groups of a hundred.
    """
    rows = seq_lens.shape[0]
    if rows == 0:
        return
    _, num_kv_heads, block_size, head_size = key_cache.shape
    num_heads = q.shape[1]
    group = num_heads // num_kv_heads
    platform = current_platform()
    config = decode_config(platform.arch, head_size, group, q.element_size())
    splits = num_splits if workspace is not None else 1
    min_split = launch.min_split_tokens(platform.arch) if min_split_tokens is None else min_split_tokens
    partial, lse = (q, q) if workspace is None else (workspace.partial, workspace.lse)
    block_d = launch.padded_head_size(head_size)
    decode_attention_kernel[(rows, num_kv_heads, splits)](
        q, key_cache, value_cache, out, partial, lse,
        block_table, seq_lens, query_start_loc,
        seq_lens if k_scale is None else k_scale, seq_lens if v_scale is None else v_scale,
        scale * LOG2_E, q.stride(0), out.stride(0), block_table.stride(0),
        key_cache.stride(0), key_cache.stride(1), key_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_SIZE=head_size, BLOCK_D=block_d, BLOCK_SIZE=block_size,
        TILE_M=config.tile_m, TILE_N=config.tile_n,
        NUM_SPLITS=splits, MIN_SPLIT=min_split, WINDOW=sliding_window,
        FP8=platform.fp8 if key_cache.dtype == torch.uint8 else FP8_NONE, WIDE_DOT=platform.wide_dot,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits > 1:
        decode_reduce_kernel[(rows, num_heads)](
            partial, lse, out, seq_lens, query_start_loc, out.stride(0),
            HEAD_SIZE=head_size, BLOCK_D=block_d, TILE_N=config.tile_n,
            NUM_SPLITS=splits, MIN_SPLIT=min_split, WINDOW=sliding_window,
            num_warps=8 if block_d > 128 else 4,
        )  # fmt: skip
