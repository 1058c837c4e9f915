"""Paged attention against float64, over caches that hold NaN wherever nothing was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.build import InstructionSet
from engine.kernels.cpu.units import NativeAttention
from tests.kernels_cpu.models import DTYPES, Pool, supported_isas


class Case:
    """Requests of ``(context, new tokens)`` with random queries, keys and values, scattered over blocks."""

    def __init__(
        self,
        requests: list[tuple[int, int]],
        heads: tuple[int, int],
        head_size: int,
        block_size: int,
        dtype: torch.dtype,
        *,
        seed: int = 0,
        threads: int = 2,
        isa: InstructionSet | None = None,
    ) -> None:
        random = torch.Generator().manual_seed(seed)
        num_heads, kv_heads = heads
        num_blocks = 1 + sum(-(-context // block_size) for context, _ in requests)
        pool = Pool.shuffled(num_blocks, block_size, seed)
        self.native = NativeAttention(
            num_heads, kv_heads, head_size, block_size, num_blocks, dtype, num_threads=threads, isa=isa
        )
        self.native.fill(float("nan"))
        self.requests = requests
        self.blocks, self.keys, self.values = [], [], []
        for context, _ in requests:
            blocks = pool.take(context)
            # Values that both dtypes hold exactly: the tolerance is the kernel's alone.
            keys = torch.randn(context, kv_heads, head_size, generator=random).bfloat16().float()
            values = torch.randn(context, kv_heads, head_size, generator=random).bfloat16().float()
            positions = torch.arange(context)
            slots = torch.tensor(blocks)[positions // block_size] * block_size + positions % block_size
            self.native.write(0, slots, keys, values)
            self.blocks.append(blocks)
            self.keys.append(keys)
            self.values.append(values)
        total = sum(new for _, new in requests)
        self.query = torch.randn(total, num_heads, head_size, generator=random).to(dtype)

    def run(self, query: torch.Tensor, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """``rows``: (request, context, new tokens) each; queries packed in that order."""
        starts = torch.tensor([0, *[new for _, _, new in rows]]).cumsum(0).int()
        width = max(len(blocks) for blocks in self.blocks)
        table = torch.zeros(len(rows), width, dtype=torch.int32)
        for i, (request, _, _) in enumerate(rows):
            table[i, : len(self.blocks[request])] = torch.tensor(self.blocks[request], dtype=torch.int32)
        lengths = torch.tensor([context for _, context, _ in rows], dtype=torch.int32)
        return self.native(query.contiguous(), starts, lengths, table)

    def run_all(self) -> torch.Tensor:
        return self.run(self.query, [(i, context, new) for i, (context, new) in enumerate(self.requests)])

    def wanted(self) -> torch.Tensor:
        outputs, row = [], 0
        for (context, new), keys, values in zip(self.requests, self.keys, self.values, strict=True):
            query = self.query[row : row + new].double()
            group = query.shape[1] // keys.shape[1]
            wide_keys = keys.double().repeat_interleave(group, dim=1)
            wide_values = values.double().repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", query, wide_keys) / query.shape[2] ** 0.5
            hidden = torch.arange(context) > torch.arange(context - new, context).unsqueeze(1)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, wide_values))
            row += new
        return torch.cat(outputs)


def assert_attends(case: Case, dtype: torch.dtype) -> None:
    actual, wanted = case.run_all(), case.wanted()
    assert torch.isfinite(actual).all()
    # bfloat16: weights and output are each rounded to 8 bits.
    tolerance = 5e-6 if dtype == torch.float32 else 2e-2
    assert (actual.double() - wanted).abs().max().item() < tolerance


MIXED = [(1, 1), (16, 16), (17, 1), (300, 300), (531, 40), (257, 1), (40, 7), (5, 5)]


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "head_size", "block_size"),
    [
        ((4, 2), 8, 4),
        ((2, 2), 16, 16),
        ((9, 3), 64, 16),
        ((4, 1), 80, 32),
        ((6, 2), 96, 24),
        ((3, 3), 128, 1),
        ((7, 1), 64, 7),
        ((64, 1), 32, 64),
    ],
)
def test_decode_and_prefill_in_one_batch(
    heads: tuple[int, int], head_size: int, block_size: int, dtype: torch.dtype, isa: InstructionSet
) -> None:
    assert_attends(Case(MIXED, heads, head_size, block_size, dtype, isa=isa), dtype)


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 60)).map(lambda pair: (max(pair), min(pair))),
        min_size=1,
        max_size=4,
    ),
    heads=st.sampled_from([(1, 1), (4, 2), (9, 3), (5, 1)]),
    head_size=st.sampled_from([16, 36, 64]),
    block_size=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_random_layouts(
    requests: list[tuple[int, int]],
    heads: tuple[int, int],
    head_size: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    assert_attends(Case(requests, heads, head_size, block_size, dtype, seed=seed), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "head_size", "block_size"),
    [((9, 3), 64, 16), ((8, 1), 96, 32), ((6, 2), 80, 16), ((20, 1), 128, 24)],
)
def test_a_row_is_the_same_bits_alone_batched_and_in_other_chunks(
    heads: tuple[int, int], head_size: int, block_size: int, dtype: torch.dtype
) -> None:
    case = Case([(600, 90), (300, 1), (2000, 1)], heads, head_size, block_size, dtype, threads=2)
    whole = case.run_all()
    # Alone (the long context is then split over threads), and in chunks that cut the tiles elsewhere.
    assert torch.equal(case.run(case.query[91:92], [(2, 2000, 1)]), whole[91:92])
    assert torch.equal(case.run(case.query[90:91], [(1, 300, 1)]), whole[90:91])
    done = 0
    for size in (1, 13, 50, 26):
        part = case.run(case.query[done : done + size], [(0, 510 + done + size, size)])
        assert torch.equal(part, whole[done : done + size])
        done += size


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_do_not_overflow(dtype: torch.dtype) -> None:
    case = Case([(600, 3), (40, 1)], (4, 2), 64, 16, dtype)
    case.query = case.query * 300
    assert_attends(case, dtype)
