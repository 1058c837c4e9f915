"""Tiny random models for the backend on Triton kernels."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.weights import LayerWeights, ModelWeights


def tiny_config(
    head_size: int, num_heads: int, num_kv_heads: int, *, qkv_bias: bool = False, qk_norm: bool = False
) -> ModelConfig:
    """Two layers; sizes that are no powers of two."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=71,
        hidden_size=36,
        intermediate_size=44,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )


def random_weights(config: ModelConfig, dtype: torch.dtype) -> ModelWeights:
    """Weights that ``dtype`` and bfloat16 hold exactly, so that backends of different types compare."""
    random = torch.Generator().manual_seed(3)
    c = config

    def draw(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=random) * scale).bfloat16().to(dtype)

    def norm(size: int) -> torch.Tensor:
        return (1 + torch.randn(size, generator=random) * 0.1).bfloat16().to(dtype)

    inward = c.hidden_size**-0.5
    layers = tuple(
        LayerWeights(
            input_norm=norm(c.hidden_size),
            qkv=draw(c.q_size + 2 * c.kv_size, c.hidden_size, scale=inward),
            qkv_bias=draw(c.q_size + 2 * c.kv_size, scale=0.1) if c.qkv_bias else None,
            q_norm=norm(c.head_size) if c.qk_norm else None,
            k_norm=norm(c.head_size) if c.qk_norm else None,
            o=draw(c.hidden_size, c.q_size, scale=c.q_size**-0.5),
            post_norm=norm(c.hidden_size),
            gate_up=draw(2 * c.intermediate_size, c.hidden_size, scale=inward),
            down=draw(c.hidden_size, c.intermediate_size, scale=c.intermediate_size**-0.5),
        )
        for _ in range(c.num_layers)
    )
    embed = draw(c.vocab_size, c.hidden_size, scale=1.0)
    return ModelWeights(c, embed, layers, norm(c.hidden_size), embed)
