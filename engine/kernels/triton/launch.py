"""Launch configurations by architecture and shape: the only place where tile sizes and warps are chosen.

No tensors here. Figures were chosen by what compiles without spills and fits in shared memory (the table of
docs/kernels.md); a search on a device, offline, may replace them. Nothing is tuned at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

SILU_BLOCK = 1024
SILU_WARPS = 4
PENALTY_BLOCK = 512
CUT_BLOCK = 2048
CUT_WARPS = 8
_MIN_DOT = 16


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """``tile_m`` rows of queries, packed with the heads of a group; ``tile_n`` tokens of context an
    iteration.
    """

    tile_m: int = 0
    tile_n: int = 0
    num_warps: int = 4
    num_stages: int = 1


def next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def padded_head_size(head_size: int) -> int:
    """Columns of a tile of heads: a power of two that a matrix product takes."""
    return max(_MIN_DOT, next_power_of_two(head_size))


def _family(arch: int) -> int:
    """The compiled architecture whose table entries ``arch`` takes: small Blackwells and Adas have Ampere's
    matrix instructions, and less shared memory than sm_90.
    """
    if arch == 90:
        return 90
    return 100 if 100 <= arch < 110 else 80


def norm_config(size: int) -> LaunchConfig:
    """RMSNorm over rows of ``size`` elements: 8 to 32 elements a thread."""
    block = next_power_of_two(size)
    return LaunchConfig(num_warps=min(16, max(1, block // 512)))


def rope_heads(head_size: int) -> int:
    """Heads that one program of the rope kernel rotates: 1024 elements or so."""
    return max(1, 1024 // next_power_of_two(head_size))


def decode_config(arch: int, head_size: int, group: int, element_size: int) -> LaunchConfig:
    """Paged decode attention.

    Args:
        arch: compute capability, 0 for the interpreter.
        head_size: D.
        group: query heads that share a KV head.
        element_size: bytes of the query's type; fp8 caches are computed in it as well.
    """
    tile_m = max(_MIN_DOT, next_power_of_two(group))
    if arch == 0:
        return LaunchConfig(tile_m, 16, 1, 1)
    wide = padded_head_size(head_size) * element_size
    if element_size == 4:
        return LaunchConfig(tile_m, 16, 4, 1)
    if wide <= 128:
        return LaunchConfig(tile_m, 128, 4, 3)
    if wide <= 256:
        return LaunchConfig(tile_m, 64, 4, 3)
    return LaunchConfig(tile_m, 32, 4, 3 if _family(arch) >= 90 else 2)


def prefill_config(arch: int, head_size: int, element_size: int) -> LaunchConfig:
    """Varlen prefill attention; arguments as in :func:`decode_config`.

    Where a tile of 128 by 64 spills on sm_80, it has more warps there or is half as long.
    """
    if arch == 0:
        return LaunchConfig(16, 16, 1, 1)
    family, wide = _family(arch), padded_head_size(head_size)
    if element_size == 4:
        return LaunchConfig(16, 16, 8 if family >= 100 and wide > 64 else 4, 1)
    if wide <= 64:
        return LaunchConfig(128, 64, 4 if family >= 90 else 8, 3)
    if wide <= 128:
        return LaunchConfig(128, 64, 8, 3) if family >= 90 else LaunchConfig(128, 32, 8, 3)
    if family >= 100:
        return LaunchConfig(128, 32, 8, 2)
    return LaunchConfig(64, 32, 8, 2 if family >= 90 else 3)


MIN_SPLIT_TOKENS = 256
"""Least context of one split: below it, the reduction costs more than the parallelism gains."""

MAX_SPLITS = 64
_PROGRAMS_PER_SM = 4


def min_split_tokens(arch: int) -> int:
    """:data:`MIN_SPLIT_TOKENS`; few in the interpreter, so that tests with short contexts split too."""
    return MIN_SPLIT_TOKENS if arch else 16


def decode_splits(
    num_sms: int,
    num_rows: int,
    num_kv_heads: int,
    max_seq_len: int,
    min_split: int = MIN_SPLIT_TOKENS,
) -> int:
    """Parts that a row's context is cut into, so that small batches fill the device too; a power of two.

    The number is a function of what a captured graph fixes: rows, heads and the longest context allowed.
    """
    wanted = _PROGRAMS_PER_SM * num_sms // max(1, num_rows * num_kv_heads)
    most = min(MAX_SPLITS, -(-max_seq_len // min_split))
    splits = 1
    while splits * 2 <= wanted and splits < most:
        splits *= 2
    return splits
