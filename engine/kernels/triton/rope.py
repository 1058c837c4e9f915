"""Rotary embedding of queries and keys, and the write of keys and values into the paged cache: one kernel."""

# ruff: noqa: N803, N806  # constexpr names are capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.fp8 import encode_e4m3
from engine.kernels.triton.launch import next_power_of_two, rope_heads
from engine.kernels.triton.platform import FP8_NONE, current_platform


@triton.jit
def rope_and_cache_kernel(
    qkv_ptr, q_out_ptr, key_cache_ptr, value_cache_ptr, position_ptr, slot_ptr, cos_ptr, sin_ptr,
    q_norm_ptr, k_norm_ptr, k_scale_ptr, v_scale_ptr,
    qkv_stride, q_out_stride, block_stride, head_stride, slot_stride, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, HAS_NORM: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = HEAD_SIZE // 2
    QUERY_PARTS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    is_query = part < QUERY_PARTS
    # Heads in the order of the projection's rows: queries, keys, values.
    own = tl.where(is_query, part, part - QUERY_PARTS) * HEADS + tl.arange(0, HEADS)
    count = tl.where(is_query, NUM_HEADS, NUM_KV_HEADS)
    row = tl.where(is_query, own, own + NUM_HEADS)

    half = tl.arange(0, BLOCK_HALF)
    in_half = half < HALF
    inside = (own < count)[:, None] & in_half[None, :]
    source = qkv_ptr + token * qkv_stride + row[:, None] * HEAD_SIZE + half[None, :]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)

    if HAS_NORM:
        mean = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / HEAD_SIZE
        factor = tl.rsqrt(mean + eps)[:, None]
        norm = tl.where(is_query, q_norm_ptr, k_norm_ptr)
        first *= factor * tl.load(norm + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        second *= factor * tl.load(norm + HALF + half, mask=in_half, other=0.0).to(tl.float32)[None, :]

    position = tl.load(position_ptr + token).to(tl.int64)
    cos = tl.load(cos_ptr + position * HALF + half, mask=in_half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + half, mask=in_half, other=0.0)[None, :]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin

    if is_query:
        target = q_out_ptr + token * q_out_stride + own[:, None] * HEAD_SIZE + half[None, :]
        tl.store(target, turned_first.to(q_out_ptr.dtype.element_ty), mask=inside)
        tl.store(target + HALF, turned_second.to(q_out_ptr.dtype.element_ty), mask=inside)
    else:
        slot = tl.load(slot_ptr + token).to(tl.int64)
        # A negative slot is padding: nothing is written for it, not even to the null block.
        written = inside & (slot >= 0)
        value_source = source + NUM_KV_HEADS * HEAD_SIZE
        value_first = tl.load(value_source, mask=written, other=0.0)
        value_second = tl.load(value_source + HALF, mask=written, other=0.0)
        place = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride
        offset = place + own[:, None].to(tl.int64) * head_stride + half[None, :]
        if FP8 == 0:
            tl.store(key_cache_ptr + offset, turned_first.to(key_cache_ptr.dtype.element_ty), mask=written)
            tl.store(
                key_cache_ptr + offset + HALF, turned_second.to(key_cache_ptr.dtype.element_ty), mask=written
            )
            tl.store(value_cache_ptr + offset, value_first, mask=written)
            tl.store(value_cache_ptr + offset + HALF, value_second, mask=written)
        else:
            k_scale = tl.load(k_scale_ptr + own, mask=own < count, other=1.0)[:, None]
            v_scale = tl.load(v_scale_ptr + own, mask=own < count, other=1.0)[:, None]
            tl.store(key_cache_ptr + offset, encode_e4m3(turned_first / k_scale, FP8), mask=written)
            tl.store(key_cache_ptr + offset + HALF, encode_e4m3(turned_second / k_scale, FP8), mask=written)
            tl.store(
                value_cache_ptr + offset, encode_e4m3(value_first.to(tl.float32) / v_scale, FP8), mask=written
            )
            tl.store(
                value_cache_ptr + offset + HALF,
                encode_e4m3(value_second.to(tl.float32) / v_scale, FP8),
                mask=written,
            )


def rope_and_cache(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_out: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Norm (optional) and rotate queries and keys; write keys and values to their slots.

    Args:
        qkv: [T, (h + 2g)·D], last dimension contiguous, rows of the projection: all q, all k, all v heads.
        positions: int64 [T].
        slot_mapping: int64 [T], block·block_size + offset; negative: padding, nothing is written.
        cos, sin: float32 [P, D/2], contiguous (:func:`engine.models.rope.rope_cos_sin`).
        q_out: [T, h, D], heads contiguous; may be the view of ``qkv`` that holds the queries.
        key_cache, value_cache: [num_blocks, g, block_size, D] (any strides but the last, both the same), in
            ``qkv``'s dtype, or uint8: e4m3fn bits of value / scale.
        q_norm, k_norm: [D] each, or both None: weights of an RMSNorm over every head before the rotation
            (Qwen3). ``eps`` is its epsilon.
        k_scale, v_scale: float32 [g], needed for a uint8 cache.

    On paper, e bytes an element, c bytes a cache element: reads T·(h + 2g)·D·e, writes T·h·D·e + 2·T·g·D·c,
    and 4·T·D for cos and sin; 3·T·(h + g)·D FLOP: bound by memory. Computed in float32.
    """
    tokens = qkv.shape[0]
    if tokens == 0:
        return
    _, num_kv_heads, block_size, head_size = key_cache.shape
    num_heads = q_out.shape[1]
    heads = min(rope_heads(head_size), next_power_of_two(num_heads))
    fp8 = current_platform().fp8 if key_cache.dtype == torch.uint8 else FP8_NONE
    grid = (tokens, triton.cdiv(num_heads, heads) + triton.cdiv(num_kv_heads, heads))
    rope_and_cache_kernel[grid](
        qkv, q_out, key_cache, value_cache, positions, slot_mapping, cos, sin,
        qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm,
        cos if k_scale is None else k_scale, cos if v_scale is None else v_scale,
        qkv.stride(0), q_out.stride(0), key_cache.stride(0), key_cache.stride(1), key_cache.stride(2), eps,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_SIZE=head_size,
        BLOCK_HALF=next_power_of_two(head_size // 2), BLOCK_SIZE=block_size, HEADS=heads,
        HAS_NORM=q_norm is not None, FP8=fp8, num_warps=4,
    )  # fmt: skip
