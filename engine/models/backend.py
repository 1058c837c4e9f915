"""The seam between the executor and whatever computes a forward pass: torch reference, native CPU, Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(slots=True)
class ForwardBatch:
    """Inputs of one forward over T tokens of B requests, packed without padding (vLLM's varlen layout).

    Request i owns rows ``query_start_loc[i]:query_start_loc[i+1]``; its queries stand at the end of its
    context of ``seq_lens[i]`` tokens (new ones included). Token j's KV is written to ``slot_mapping[j]`` =
    block·block_size + offset.
    """

    input_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    query_start_loc: torch.Tensor  # int32 [B + 1]
    seq_lens: torch.Tensor  # int32 [B]
    block_table: torch.Tensor  # int32 [B, max_blocks], rows padded with 0 (the null block)
    slot_mapping: torch.Tensor  # int64 [T]
    logits_indices: torch.Tensor  # int64 [R], rows of the packed tokens whose logits are wanted
    max_query_len: int
    max_seq_len: int


class ModelBackend(Protocol):
    """Owns the weights in its own layout, and the KV cache."""

    name: str
    vocab_size: int

    def kv_bytes_per_block(self) -> int:
        """Bytes that one KV block takes over all layers."""
        ...

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocate ``num_blocks`` blocks, block 0 included. Contents may be anything, NaN included."""
        ...

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Write K/V of the batch, attend, and return float32 logits [R, V] for ``logits_indices``."""
        ...
