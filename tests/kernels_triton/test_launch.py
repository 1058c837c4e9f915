"""The launch table: what must hold of every entry, whatever its figures are."""

from __future__ import annotations

import itertools

from engine.kernels.triton.launch import (
    MAX_SPLITS,
    decode_config,
    decode_splits,
    min_split_tokens,
    padded_head_size,
    prefill_config,
)


def test_tiles_are_what_a_matrix_product_takes() -> None:
    sizes = (8, 10, 16, 64, 80, 96, 128, 192, 256)
    for arch, size, width in itertools.product((0, 80, 86, 89, 90, 100, 103, 120), sizes, (2, 4)):
        assert padded_head_size(size) >= max(16, size)
        for group in (1, 3, 8, 64):
            decode = decode_config(arch, size, group, width)
            assert decode.tile_m >= max(16, group)
            for config in (decode, prefill_config(arch, size, width)):
                assert config.tile_m >= 16
                assert config.tile_n >= 16
                assert config.tile_m & (config.tile_m - 1) == config.tile_n & (config.tile_n - 1) == 0


def test_devices_between_the_compiled_ones_take_the_smaller_tiles() -> None:
    for size in (64, 128, 256):
        assert prefill_config(120, size, 2) == prefill_config(86, size, 2) == prefill_config(80, size, 2)
        assert prefill_config(103, size, 2) == prefill_config(100, size, 2)


def test_splits_fill_the_device_but_not_beyond_the_context() -> None:
    # H200, Llama-3.1-8B: batch 1 is split as far as its context allows, batch 64 fills the device unsplit.
    assert decode_splits(132, 1, 8, 131072) == MAX_SPLITS
    assert decode_splits(132, 1, 8, 1024) == 4
    assert decode_splits(132, 16, 8, 131072) == 4
    assert decode_splits(132, 64, 8, 131072) == 1
    assert decode_splits(132, 1, 8, 200) == 1
    for rows, heads, context in itertools.product((1, 5, 63, 256), (1, 8, 32), (1, 257, 4096, 1 << 20)):
        splits = decode_splits(132, rows, heads, context)
        assert splits & (splits - 1) == 0
        assert 1 <= splits <= MAX_SPLITS
        assert splits == 1 or rows * heads * splits <= 4 * 132


def test_the_interpreter_splits_short_contexts() -> None:
    assert (min_split_tokens(0), min_split_tokens(90)) == (16, 256)
    assert decode_splits(1, 1, 2, 96, min_split_tokens(0)) == 2
