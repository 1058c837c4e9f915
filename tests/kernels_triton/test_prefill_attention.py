"""Varlen prefill attention over paged history against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.triton.prefill import prefill_attention
from tests.kernels_triton.cases import SHAPES, AttentionCase, Layout, assert_attends


def check(layout: Layout, skip_decodes: bool = False, device: str | None = None) -> None:
    case = AttentionCase(layout) if device is None else AttentionCase(layout, device)
    prefill_attention(
        case.query, case.key_cache, case.value_cache, case.block_table, case.seq_lens, case.query_start_loc,
        case.out, scale=layout.head_size**-0.5, k_scale=case.k_scale, v_scale=case.v_scale,
        sliding_window=layout.window, skip_decodes=skip_decodes,
    )  # fmt: skip
    more = case.rows_of("more")
    assert_attends(case, more if skip_decodes else torch.ones_like(more))


@pytest.mark.parametrize(("heads", "head_size", "block_size", "dtype"), SHAPES)
def test_prompts_chunks_and_single_tokens(
    heads: tuple[int, int], head_size: int, block_size: int, dtype: torch.dtype
) -> None:
    # A token alone, a chunk behind history, an empty row, a decode row, a whole prompt.
    check(Layout(((1, 1), (20, 5), (9, 0), (17, 1), (11, 11)), heads, head_size, block_size, dtype))


def test_decode_rows_are_left_to_the_decode_kernel() -> None:
    check(Layout(((33, 1), (18, 4), (1, 1), (5, 5)), (2, 1), 64, 16), skip_decodes=True)


@pytest.mark.parametrize("window", [1, 7, 16, 30])
def test_sliding_window(window: int) -> None:
    check(Layout(((40, 3), (23, 23), (17, 1)), (2, 1), 64, 16, window=window))


def test_fp8_cache_with_scales() -> None:
    check(Layout(((1, 1), (20, 9), (12, 12)), (4, 2), 80, 16, fp8=True))


@settings(max_examples=8, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 20)).map(lambda r: (max(r), r[1])),
        min_size=1,
        max_size=4,
    ).filter(lambda requests: any(new for _, new in requests)),
    group=st.integers(1, 8),
    kv_heads=st.integers(1, 2),
    head_size=st.sampled_from([8, 36, 64]),
    block_size=st.sampled_from([1, 3, 16, 32]),
    window=st.sampled_from([0, 0, 9]),
    seed=st.integers(0, 1000),
)
def test_random_layouts(
    requests: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_size: int,
    block_size: int,
    window: int,
    seed: int,
) -> None:
    heads = (group * kv_heads, kv_heads)
    check(Layout(tuple(requests), heads, head_size, block_size, window=window, seed=seed))
