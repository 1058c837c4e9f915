"""Tiny random models for the backend on Triton kernels."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.weights import ModelWeights
from tests.helpers import random_models


def tiny_config(
    head_size: int, num_heads: int, num_kv_heads: int, *, qkv_bias: bool = False, qk_norm: bool = False
) -> ModelConfig:
    """Two layers; sizes that are no powers of two, and small: the interpreter is slow."""
    return random_models.tiny_config(
        head_size,
        num_heads,
        num_kv_heads,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        vocab_size=71,
        hidden_size=36,
        intermediate_size=44,
        num_layers=2,
    )


def random_weights(config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Weights that ``dtype`` and bfloat16 hold exactly, so that backends of different types compare."""
    return random_models.cast(random_models.random_weights(config, torch.bfloat16, seed=3), dtype)
