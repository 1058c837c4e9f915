"""Inputs of attention kernels: a paged cache whose blocks are dealt out in random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Requests of (context, queries); K and V ``[num_blocks, g, block_size, D]``."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    out: torch.Tensor
    max_seq_len: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As the attention kernels take them."""
        return (
            self.query, self.key_cache, self.value_cache, self.block_table, self.seq_lens,
            self.query_start_loc, self.out,
        )  # fmt: skip


def attention_case(
    config: ModelConfig,
    requests: Sequence[tuple[int, int]],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
) -> AttentionCase:
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

    blocks = [-(-context // block_size) for context, _ in requests]
    total = sum(blocks) + 1
    order = torch.randperm(total - 1, generator=torch.Generator().manual_seed(seed)) + 1
    table = torch.zeros(len(requests), max(max(blocks), 1), dtype=torch.int32)
    first = 0
    for row, count in enumerate(blocks):
        table[row, :count] = order[first : first + count].to(torch.int32)
        first += count
    queries = [count for _, count in requests]
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    g, d = config.num_kv_heads, config.head_size
    query = normal(sum(queries), config.num_heads, d)
    return AttentionCase(
        query=query,
        key_cache=normal(total, g, block_size, d),
        value_cache=normal(total, g, block_size, d),
        block_table=table.to(device),
        seq_lens=torch.tensor([context for context, _ in requests], dtype=torch.int32, device=device),
        query_start_loc=starts.to(device),
        out=torch.full_like(query, float("nan")),
        max_seq_len=max(context for context, _ in requests),
    )


def attention_cost(
    config: ModelConfig, requests: Sequence[tuple[int, int]], element_size: int
) -> tuple[float, float]:
    """(bytes, FLOP): K and V read once, queries read and outputs written; causal pairs only."""
    kv = sum(context for context, _ in requests) * 2 * config.kv_size * element_size
    q = sum(count for _, count in requests) * 2 * config.q_size * element_size
    pairs = sum(count * (context - count) + count * (count + 1) / 2 for context, count in requests)
    return float(kv + q), 4.0 * pairs * config.q_size
