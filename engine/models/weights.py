"""A model's weights as plain data: what loaders produce and backends consume."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are [out, in].

    Shapes: H hidden, I intermediate, D head size, h query heads, g KV heads.
    """

    input_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [(h + 2g)·D, H], rows: all q heads, all k heads, all v heads
    qkv_bias: torch.Tensor | None  # [(h + 2g)·D]
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    o: torch.Tensor  # [H, h·D]
    post_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2I, H], rows: gate, then up
    down: torch.Tensor  # [H, I]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, one dtype, on one device. ``lm_head`` is ``embed`` itself when tied."""

    config: ModelConfig
    embed: torch.Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [H]
    lm_head: torch.Tensor  # [V, H]

    def to(self, device: torch.device) -> ModelWeights:
        """The same weights on ``device``; tensors that are there already are not copied."""

        def moved(layer: LayerWeights) -> dict[str, Any]:
            tensors = {field.name: getattr(layer, field.name) for field in fields(layer)}
            return {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}

        layers = tuple(LayerWeights(**moved(layer)) for layer in self.layers)
        embed = self.embed.to(device)
        lm_head = embed if self.lm_head is self.embed else self.lm_head.to(device)
        return ModelWeights(self.config, embed, layers, self.final_norm.to(device), lm_head)
