"""Attention over a paged KV cache in plain torch: the oracle for every faster kernel.

Paging as in vLLM (Kwon et al., SOSP 2023): a request's context lies in blocks named by its row of the block
table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def write_kv(cache: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Store ``values`` [T, g, D] into ``cache`` [num_blocks, block_size, g, D] at ``slot_mapping`` [T]."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, values.to(cache.dtype))


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """Causal attention of each request's new tokens over its whole context, one request after another.

    Args:
        query: [T, h, D], packed; request i's queries stand at the end of its context.
        key_cache, value_cache: [num_blocks, block_size, g, D]; the new tokens' K/V are already in them.
        query_start_loc: [B + 1]. seq_lens: [B]. block_table: [B, max_blocks].

    Returns:
        [T, h, D] in the query's dtype; scores and sums are at least float32.
    """
    block_size = key_cache.shape[1]
    compute = torch.promote_types(query.dtype, torch.float32)
    output = torch.empty_like(query)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for i, length in enumerate(lengths):
        begin, end = starts[i], starts[i + 1]
        blocks = block_table[i, : -(-length // block_size)].long()
        # Only slots below the context's length are touched: what lies in the others may be NaN.
        keys = key_cache[blocks].flatten(0, 1)[:length].to(compute)
        values = value_cache[blocks].flatten(0, 1)[:length].to(compute)
        attended = F.scaled_dot_product_attention(
            query[begin:end].to(compute).transpose(0, 1).unsqueeze(0),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            attn_mask=_causal_mask(end - begin, length, query.device),
            enable_gqa=True,
        )
        output[begin:end] = attended[0].transpose(0, 1).to(query.dtype)
    return output


def _causal_mask(query_len: int, seq_len: int, device: torch.device) -> torch.Tensor | None:
    """True where query row may see key column: [query_len, seq_len]; a single query sees everything."""
    if query_len == 1:
        return None
    return torch.ones(query_len, seq_len, dtype=torch.bool, device=device).tril(seq_len - query_len)
