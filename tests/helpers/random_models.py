"""Random models for the tests of backends."""

from __future__ import annotations

from dataclasses import fields

import torch

from engine.models.config import ModelConfig
from engine.models.weights import LayerWeights, ModelWeights


def tiny_config(
    head_size: int,
    num_heads: int,
    num_kv_heads: int,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = True,
    vocab_size: int = 101,
    hidden_size: int = 60,
    intermediate_size: int = 52,
    num_layers: int = 3,
) -> ModelConfig:
    """Sizes that are no multiples of the kernels' tiles."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )


def random_weights(config: ModelConfig, dtype: torch.dtype, seed: int = 0) -> ModelWeights:
    """Weights whose activations stay near one, as a trained model's do."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=random) * scale).to(dtype)

    def norm(size: int) -> torch.Tensor:
        return 1 + draw(size, scale=0.1)

    c = config
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
    head = embed if c.tie_word_embeddings else draw(c.vocab_size, c.hidden_size, scale=1.0)
    return ModelWeights(c, embed, layers, norm(c.hidden_size), head)


def cast(weights: ModelWeights, dtype: torch.dtype) -> ModelWeights:
    """The same values in another dtype."""

    def to(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(dtype)

    layers = tuple(
        LayerWeights(**{field.name: to(getattr(layer, field.name)) for field in fields(LayerWeights)})
        for layer in weights.layers
    )
    return ModelWeights(
        weights.config,
        weights.embed.to(dtype),
        layers,
        weights.final_norm.to(dtype),
        weights.lm_head.to(dtype),
    )
