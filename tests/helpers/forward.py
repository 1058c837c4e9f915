"""Runs a backend on whole sequences, in chunks, through a block table of the caller's choice."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.backend import ForwardBatch, ModelBackend


def forward_batch(
    parts: Sequence[tuple[Sequence[int], int, Sequence[int]]], block_size: int, all_logits: bool = True
) -> ForwardBatch:
    """Pack ``(new token ids, computed tokens, block ids)`` of several requests.

    ``all_logits``: logits of every row; else only of each request's last one.
    """
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, lengths = [0], []
    for tokens, computed, blocks in parts:
        ids += tokens
        span = range(computed, computed + len(tokens))
        positions += span
        slots += [blocks[p // block_size] * block_size + p % block_size for p in span]
        starts.append(len(ids))
        lengths.append(computed + len(tokens))
    width = max(len(blocks) for _, _, blocks in parts)
    table = torch.zeros(len(parts), width, dtype=torch.int32)
    for row, (_, _, blocks) in enumerate(parts):
        table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    wanted = list(range(len(ids))) if all_logits else [end - 1 for end in starts[1:]]
    return ForwardBatch(
        input_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.tensor(slots),
        logits_indices=torch.tensor(wanted),
        max_query_len=max(len(tokens) for tokens, _, _ in parts),
        max_seq_len=max(lengths),
    )


def chunked_logits(
    backend: ModelBackend,
    token_ids: Sequence[int],
    chunks: Sequence[int],
    blocks: Sequence[int],
    block_size: int,
) -> torch.Tensor:
    """Logits [len(token_ids), V] of one sequence, in steps of ``chunks`` tokens (its length in all)."""
    done, logits = 0, []
    for size in chunks:
        part = (token_ids[done : done + size], done, blocks)
        logits.append(backend.forward(forward_batch([part], block_size)))
        done += size
    return torch.cat(logits)
