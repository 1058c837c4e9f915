"""The reference backend: a dense decoder in plain torch, the oracle of every other backend."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.attention.paged import paged_attention, write_kv
from engine.models.backend import ForwardBatch
from engine.models.rope import apply_rope, rope_cos_sin
from engine.models.weights import LayerWeights, ModelWeights
from engine.parallel.group import SOLO, RankGroup
from engine.parallel.layers import embed, head, row_parallel


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension, in at least float32, back in ``x``'s dtype."""
    compute = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(compute)
    return (weight.to(compute) * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


class ReferenceBackend:
    """A :class:`engine.models.backend.ModelBackend` on any device. KV cache per layer: ``[num_blocks,
    block_size, g, D]``.

    Matrices multiply in the weights' dtype; norms, rotation and attention run in at least float32. With a
    ``group`` of several ranks the weights are this rank's part, and the KV cache holds its heads.
    """

    name = "reference"

    def __init__(
        self, weights: ModelWeights, max_model_len: int, block_size: int, group: RankGroup = SOLO
    ) -> None:
        self._group = group
        self._weights = weights
        self._config = weights.config
        self._block_size = block_size
        self.vocab_size = weights.config.vocab_size
        self.dtype = weights.embed.dtype
        self._device = weights.embed.device
        cos, sin = rope_cos_sin(weights.config, max_model_len)
        self._cos, self._sin = cos.to(self._device), sin.to(self._device)
        self._key_caches: list[torch.Tensor] = []
        self._value_caches: list[torch.Tensor] = []

    def kv_bytes_per_block(self) -> int:
        return self._block_size * self._config.kv_bytes_per_token(self.dtype.itemsize)

    def allocate_kv(self, num_blocks: int) -> None:
        config = self._config
        shape = (num_blocks, self._block_size, config.num_kv_heads, config.head_size)
        self._key_caches, self._value_caches = (
            [torch.empty(shape, dtype=self.dtype, device=self._device) for _ in range(config.num_layers)]
            for _ in range(2)
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        weights = self._weights
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        hidden = embed(batch.input_ids, weights.embed, self._group)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(hidden, layer.input_norm, self._config.rms_norm_eps)
            hidden = hidden + self._attention(normed, layer, index, batch, cos, sin)
            normed = rms_norm(hidden, layer.post_norm, self._config.rms_norm_eps)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + row_parallel(F.silu(gate) * up, layer.down, self._group)
        # The last norm and the head are computed only where logits are wanted.
        wanted = rms_norm(hidden[batch.logits_indices], weights.final_norm, self._config.rms_norm_eps)
        return head(wanted, weights.lm_head, self._group, self.vocab_size)

    def _attention(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        index: int,
        batch: ForwardBatch,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        config = self._config
        heads = F.linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, config.head_size)
        first_key, first_value = config.num_heads, config.num_heads + config.num_kv_heads
        query, key, value = heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = rms_norm(query, layer.q_norm, config.rms_norm_eps)
            key = rms_norm(key, layer.k_norm, config.rms_norm_eps)
        query = apply_rope(query, cos, sin).to(x.dtype)
        key = apply_rope(key, cos, sin).to(x.dtype)
        attended = self._attend(query, key, value, index, batch)
        return row_parallel(attended.flatten(1), layer.o, self._group)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: int, batch: ForwardBatch
    ) -> torch.Tensor:
        """Write the batch's K/V [T, g, D] into layer ``index``'s cache; attention of ``query`` [T, h, D]."""
        # The whole batch's K/V is written before anyone attends, so that a block shared inside one batch is
        # complete.
        write_kv(self._key_caches[index], key, batch.slot_mapping)
        write_kv(self._value_caches[index], value, batch.slot_mapping)
        return paged_attention(
            query,
            self._key_caches[index],
            self._value_caches[index],
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
        )
