"""Sampling helpers over logits or probabilities [R, V]: penalties in place, and where top-k and top-p cut.

The cut is found by bisection over the bits of a float: for values that aren't negative, the order of
floats is the order of their bits. Thirty counts over a row replace a sort of it; the row comes from the cache
after the first. With ties at the cut all tied tokens are kept (a sort would keep the lowest ids).
"""

# ruff: noqa: N803  # constexpr names are capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.launch import CUT_BLOCK, CUT_WARPS, PENALTY_BLOCK, next_power_of_two


@triton.jit
def penalties_kernel(
    logits_ptr, start_ptr, token_ptr, count_ptr, repetition_ptr, frequency_ptr, presence_ptr, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(start_ptr + row)
    place = first + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(start_ptr + row + 1)
    token = tl.load(token_ptr + place, mask=inside, other=0)
    count = tl.load(count_ptr + place, mask=inside, other=0.0)
    repetition = tl.load(repetition_ptr + row)
    target = logits_ptr + row * stride + token
    value = tl.load(target, mask=inside, other=0.0)
    value = tl.where(value > 0, value / repetition, value * repetition)
    value -= tl.load(frequency_ptr + row) * count
    value -= tl.where(count > 0, tl.load(presence_ptr + row), 0.0)
    tl.store(target, value, mask=inside)


def apply_penalties(
    logits: torch.Tensor,
    row_start: torch.Tensor,
    token_ids: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
    max_tokens: int,
) -> None:
    """Repetition, frequency and presence penalties, in place; a row pays for the tokens it has seen.

    Args:
        logits: float32 [R, V], last dimension contiguous.
        row_start: int32 [R + 1]; row r has seen ``token_ids[row_start[r]:row_start[r + 1]]``, all different.
        token_ids: int64 [N]. counts: float32 [N], times each stands in the output (0: in the prompt only).
        repetition, frequency, presence: float32 [R]; 1, 0 and 0 change nothing.
        max_tokens: of the longest row; known on the host.

    On paper: 4·N + 12·N bytes read (token, count, logit in sectors of 32 bytes, so up to 32·N more), 4·N
    written: bound by memory latency. Meaning as :mod:`engine.sampling.penalties`.
    """
    if max_tokens == 0 or logits.shape[0] == 0:
        return
    block = min(PENALTY_BLOCK, next_power_of_two(max_tokens))
    penalties_kernel[(logits.shape[0], triton.cdiv(max_tokens, block))](
        logits, row_start, token_ids, counts, repetition, frequency, presence, logits.stride(0),
        BLOCK=block, num_warps=4,
    )  # fmt: skip


@triton.jit
def top_k_top_p_kernel(
    probs_ptr, top_k_ptr, top_p_ptr, min_p_ptr, threshold_ptr, mass_ptr, stride,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base = probs_ptr + row * stride
    columns = tl.arange(0, BLOCK)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)

    highest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        highest = tl.maximum(
            highest, tl.load(base + start + columns, mask=start + columns < VOCAB, other=0.0)
        )
    most = tl.max(highest, axis=0)
    cut = tl.load(min_p_ptr + row) * most
    most_bits = most.to(tl.int32, bitcast=True)

    # The largest bits whose floats and above are at least top_k values: low holds it, high does not.
    low = tl.zeros([], tl.int32)
    high = most_bits + 1
    if top_k < VOCAB:
        while high - low > 1:
            middle = low + (high - low) // 2
            level = middle.to(tl.float32, bitcast=True)
            above = tl.zeros([BLOCK], tl.int32)
            for start in range(0, VOCAB, BLOCK):
                value = tl.load(base + start + columns, mask=start + columns < VOCAB, other=-1.0)
                above += (value >= level).to(tl.int32)
            enough = tl.sum(above, axis=0) >= top_k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    cut = tl.maximum(cut, low.to(tl.float32, bitcast=True))

    kept = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        value = tl.load(base + start + columns, mask=start + columns < VOCAB, other=0.0)
        kept += tl.where(value >= cut, value, 0.0)
    mass = tl.sum(kept, axis=0)
    if top_p < 1.0:
        wanted = top_p * mass
        low = cut.to(tl.int32, bitcast=True)
        high = most_bits + 1
        while high - low > 1:
            middle = low + (high - low) // 2
            level = middle.to(tl.float32, bitcast=True)
            kept = tl.zeros([BLOCK], tl.float32)
            for start in range(0, VOCAB, BLOCK):
                value = tl.load(base + start + columns, mask=start + columns < VOCAB, other=-1.0)
                kept += tl.where(value >= level, value, 0.0)
            part = tl.sum(kept, axis=0)
            enough = part >= wanted
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
            mass = tl.where(enough, part, mass)
        cut = low.to(tl.float32, bitcast=True)
    tl.store(threshold_ptr + row, cut)
    tl.store(mass_ptr + row, mass)


def top_k_top_p_threshold(
    probs: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    threshold: torch.Tensor,
    mass: torch.Tensor,
) -> None:
    """Where each row is cut: tokens with ``probs >= threshold`` are kept.

    min_p and top_k cut first, top_p then keeps the least set of leading tokens that holds its share of what
    is left (vLLM's order).

    Args:
        probs: float32 [R, V], not negative, last dimension contiguous.
        top_k: int32 [R], at least 1; V or more: off. top_p: float32 [R] in (0, 1]; 1: off. min_p: float32 [R]
            in [0, 1]; 0: off.
        threshold, mass: float32 [R], written: the cut, and the sum of what is kept.

    On paper: 4·R·V bytes from memory; up to 64 times that from the cache, 31 for top_k and 31 for top_p, and
    about 2 FLOP an element and pass. A row in one program: 128 rows or more fill a device. Sums are float32:
    the top_p cut can differ from a float64 one by a token whose share is within rounding.
    """
    rows, vocab = probs.shape
    if rows == 0:
        return
    block = min(CUT_BLOCK, next_power_of_two(vocab))
    top_k_top_p_kernel[(rows,)](
        probs, top_k, top_p, min_p, threshold, mass, probs.stride(0),
        VOCAB=vocab, BLOCK=block, num_warps=CUT_WARPS,
    )  # fmt: skip
