"""Varlen prefill attention over paged history: causal, chunked, the heads of a group packed into one tile.

FlashAttention-2's online softmax (Dao, 2023; arXiv:2307.08691). A tile's rows are (query, head of the group)
pairs, so that a group shares its loads of K and V; the new tokens' K and V are in the cache already.
"""

# ruff: noqa: N803, N806, SIM102  # constexpr names are capitals; a branch on a constexpr is an if of its own
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.decode import LOG2_E
from engine.kernels.triton.fp8 import load_cells
from engine.kernels.triton.launch import next_power_of_two, padded_head_size, prefill_config
from engine.kernels.triton.platform import FP8_NONE, current_platform


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def prefill_attention_kernel(
    q_ptr, key_cache_ptr, value_cache_ptr, out_ptr,
    block_table_ptr, seq_len_ptr, query_start_ptr, k_scale_ptr, v_scale_ptr,
    score_scale, num_rows, q_stride, out_stride, table_stride, block_stride, head_stride, slot_stride,
    GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, WINDOW: tl.constexpr, SKIP_DECODES: tl.constexpr,
    FP8: tl.constexpr, WIDE_DOT: tl.constexpr,
):  # fmt: skip
    QUERIES: tl.constexpr = TILE_M // GROUP
    kv_head = tl.program_id(1)
    # Late tiles of a prompt see the longest context: they start first, so that they don't end last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    # Row r owns tiles from start // QUERIES + r on: an upper bound that needs no prefix sum of tile counts.
    left = 0
    right = num_rows
    while left < right:
        middle = (left + right) // 2
        if tl.load(query_start_ptr + middle) // QUERIES + middle <= tile:
            left = middle + 1
        else:
            right = middle
    row = left - 1
    query_start = tl.load(query_start_ptr + row)
    query_len = tl.load(query_start_ptr + row + 1) - query_start
    first_query = (tile - (query_start // QUERIES + row)) * QUERIES
    if first_query >= query_len:
        return
    if SKIP_DECODES:
        if query_len == 1:
            return
    seq_len = tl.load(seq_len_ptr + row)
    first_position = seq_len - query_len + first_query

    packed = tl.arange(0, TILE_M)
    dims = tl.arange(0, BLOCK_D)
    query = first_query + packed // GROUP
    head = kv_head * GROUP + packed % GROUP
    position = first_position + packed // GROUP
    in_head = dims < HEAD_SIZE
    kept = ((packed < QUERIES * GROUP) & (query < query_len))[:, None] & in_head[None, :]
    token_row = (query_start + query).to(tl.int64)
    q = tl.load(
        q_ptr + token_row[:, None] * q_stride + head[:, None] * HEAD_SIZE + dims[None, :],
        mask=kept,
        other=0.0,
    )
    if WIDE_DOT:
        q = q.to(tl.float32)
    factor = score_scale
    if FP8 > 0:
        factor = score_scale * tl.load(k_scale_ptr + kv_head)

    high = tl.minimum(first_position + QUERIES, seq_len)
    low = 0
    # Up to here every query of the tile sees every token.
    clear = (first_position + 1) // TILE_N * TILE_N
    if WINDOW > 0:
        low = tl.maximum(first_position + 1 - WINDOW, 0) // TILE_N * TILE_N
        clear = low

    best = tl.full([TILE_M], float("-inf"), tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    acc = tl.zeros([TILE_M, BLOCK_D], tl.float32)
    offsets_n = tl.arange(0, TILE_N)
    table = block_table_ptr + row.to(tl.int64) * table_stride
    head_base = kv_head.to(tl.int64) * head_stride
    for edge in tl.static_range(2):
        begin = low if edge == 0 else clear
        end = clear if edge == 0 else high
        for start in range(begin, end, TILE_N):
            token = start + offsets_n
            seen = token < end
            if edge == 0:
                block = tl.load(table + token // BLOCK_SIZE).to(tl.int64)
                held = in_head[None, :]
            else:
                # Only slots of the context are read: the others may hold NaN.
                block = tl.load(table + token // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
                held = seen[:, None] & in_head[None, :]
            place = head_base + block * block_stride + (token % BLOCK_SIZE) * slot_stride
            cells = place[:, None] + dims[None, :]
            k = load_cells(key_cache_ptr + cells, held, FP8)
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * factor
            if edge == 1:
                visible = seen[None, :] & (token[None, :] <= position[:, None])
                if WINDOW > 0:
                    visible = visible & (token[None, :] > position[:, None] - WINDOW)
                scores = tl.where(visible, scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            base = higher
            if WINDOW > 0:
                # A late query may see nothing of an early tile: -inf - -inf would be NaN.
                base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - base[:, None])
            decay = tl.exp2(best - base)
            total = total * decay + tl.sum(weights, axis=1)
            v = load_cells(value_cache_ptr + cells, held, FP8)
            acc = acc * decay[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
            best = higher

    # Rows that pad the tile may have seen nothing.
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    if FP8 > 0:
        acc = acc * tl.load(v_scale_ptr + kv_head)
    target = out_ptr + token_row[:, None] * out_stride + head[:, None] * HEAD_SIZE + dims[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=kept)


def prefill_attention(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sliding_window: int = 0,
    skip_decodes: bool = False,
) -> None:
    """Causal attention of every row's query tokens, which stand at the end of its context.

    Arguments as in :func:`engine.kernels.triton.decode.decode_attention`; a row may have any number of query
    tokens, none included.

    Args:
        skip_decodes: rows with exactly one query token are left to the decode kernel.

    On paper, per row with n queries behind p tokens of history: 4·h·D·(n·p + n·(n + 1)/2) FLOP; reads
    2·g·D·c bytes of K and V per token of context and tile of queries (``tile_m`` // group queries), and
    2·n·h·D·e for queries and outputs. Prompts of a few hundred tokens are bound by the matrix rate.
    """
    rows = seq_lens.shape[0]
    if rows == 0 or q.shape[0] == 0:
        return
    _, num_kv_heads, block_size, head_size = key_cache.shape
    group = q.shape[1] // num_kv_heads
    platform = current_platform()
    config = prefill_config(platform.arch, head_size, q.element_size())
    tile_m = max(config.tile_m, next_power_of_two(group))
    tiles = q.shape[0] // (tile_m // group) + rows
    prefill_attention_kernel[(tiles, num_kv_heads)](
        q, key_cache, value_cache, out,
        block_table, seq_lens, query_start_loc,
        seq_lens if k_scale is None else k_scale, seq_lens if v_scale is None else v_scale,
        scale * LOG2_E, rows, q.stride(0), out.stride(0), block_table.stride(0),
        key_cache.stride(0), key_cache.stride(1), key_cache.stride(2),
        GROUP=group, HEAD_SIZE=head_size, BLOCK_D=padded_head_size(head_size), BLOCK_SIZE=block_size,
        TILE_M=tile_m, TILE_N=config.tile_n, WINDOW=sliding_window, SKIP_DECODES=skip_decodes,
        FP8=platform.fp8 if key_cache.dtype == torch.uint8 else FP8_NONE, WIDE_DOT=platform.wide_dot,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
