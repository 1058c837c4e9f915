"""A backend that a graph can hold, in plain torch: nothing waits, nothing has a size that depends on data."""

from __future__ import annotations

import torch

from engine.models.backend import ForwardBatch
from engine.models.dense import ReferenceBackend


class GraphSafeBackend(ReferenceBackend):
    """Slots of −1 are not written; a request of length 0 attends to nothing and gets zeros."""

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: int, batch: ForwardBatch
    ) -> torch.Tensor:
        keys, values = (cache[index].flatten(0, 1) for cache in (self._key_caches, self._value_caches))
        for cache, new in ((keys, key), (values, value)):
            place = batch.slot_mapping.clamp_min(0)
            kept = cache.index_select(0, place)
            there = (batch.slot_mapping >= 0)[:, None, None]
            cache.index_copy_(0, place, torch.where(there, new.to(cache.dtype), kept))
        tokens = torch.arange(len(query), dtype=torch.int32)
        owner = torch.searchsorted(batch.query_start_loc[1:], tokens, right=True)
        owner = owner.clamp_max(len(batch.seq_lens) - 1)
        offsets = torch.arange(self._block_size)
        slots = (batch.block_table[:, :, None] * self._block_size + offsets).flatten(1).long()
        columns = torch.arange(slots.shape[1])
        seen = (columns <= batch.positions[:, None]) & (
            columns < batch.seq_lens.index_select(0, owner)[:, None]
        )
        slots = slots.index_select(0, owner).masked_fill(~seen, 0)
        per_token = seen[:, :, None, None]
        k = torch.where(per_token, keys[slots], 0.0).to(query.dtype)
        v = torch.where(per_token, values[slots], 0.0).to(query.dtype)
        group = query.shape[1] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("thd,tshd->ths", query, k) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
        return torch.einsum("ths,tshd->thd", weights, v)
