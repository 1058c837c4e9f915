"""Paged decode attention with and without splits against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.triton.decode import DecodeWorkspace, decode_attention
from tests.kernels_triton.cases import BF16, F32, SHAPES, AttentionCase, Layout, assert_attends


def check(layout: Layout, splits: int = 1, min_split: int = 16, device: str | None = None) -> None:
    case = AttentionCase(layout) if device is None else AttentionCase(layout, device)
    workspace = None
    if splits > 1:
        rows, heads = len(layout.requests), layout.heads[0]
        workspace = DecodeWorkspace.allocate(rows, heads, layout.head_size, splits, case.out.device)
        for buffer in (workspace.partial, workspace.lse):
            buffer.fill_(float("nan"))
    decode_attention(
        case.query, case.key_cache, case.value_cache, case.block_table, case.seq_lens, case.query_start_loc,
        case.out, scale=layout.head_size**-0.5, num_splits=splits, workspace=workspace,
        k_scale=case.k_scale, v_scale=case.v_scale, sliding_window=layout.window, min_split_tokens=min_split,
    )  # fmt: skip
    assert_attends(case, case.rows_of("one"))


@pytest.mark.parametrize(("heads", "head_size", "block_size", "dtype"), SHAPES)
def test_ragged_rows(heads: tuple[int, int], head_size: int, block_size: int, dtype: torch.dtype) -> None:
    # One token, a full block, one more, and several; a padding row; rows that are not this kernel's.
    requests = ((1, 1), (16, 1), (0, 1), (17, 1), (20, 2), (9, 0), (35, 1))
    check(Layout(requests, heads, head_size, block_size, dtype))


@pytest.mark.parametrize("splits", [2, 8])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_splits_are_reduced(splits: int, dtype: torch.dtype) -> None:
    # Fewer tokens than a split, exactly as many, all splits in use, more than all at their least size.
    check(Layout(((3, 1), (16, 1), (0, 1), (7, 3), (33, 1), (150, 1)), (2, 1), 64, 16, dtype), splits)


@pytest.mark.parametrize("window", [1, 16, 21])
@pytest.mark.parametrize("splits", [1, 4])
def test_sliding_window(window: int, splits: int) -> None:
    check(Layout(((1, 1), (16, 1), (22, 1), (40, 1), (64, 1)), (2, 1), 64, 16, window=window), splits)


@pytest.mark.parametrize("splits", [1, 4])
def test_fp8_cache_with_scales(splits: int) -> None:
    check(Layout(((1, 1), (17, 1), (40, 1)), (4, 2), 80, 16, fp8=True), splits)


@settings(max_examples=8, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 70), st.sampled_from([1, 1, 1, 0, 2])).map(lambda r: (max(r), r[1])),
        min_size=1,
        max_size=3,
    ),
    group=st.integers(1, 8),
    kv_heads=st.integers(1, 2),
    head_size=st.sampled_from([8, 36, 64]),
    block_size=st.sampled_from([1, 3, 16, 32]),
    splits=st.sampled_from([1, 2, 4]),
    window=st.sampled_from([0, 0, 9]),
    seed=st.integers(0, 1000),
)
def test_random_layouts(
    requests: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_size: int,
    block_size: int,
    splits: int,
    window: int,
    seed: int,
) -> None:
    heads = (group * kv_heads, kv_heads)
    check(Layout(tuple(requests), heads, head_size, block_size, window=window, seed=seed), splits)
