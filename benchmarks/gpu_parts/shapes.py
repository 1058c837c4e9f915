"""Models by their shape alone, with random weights made on the device."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.weights import LayerWeights, ModelWeights


def _shape(
    architecture: str, hidden: int, inner: int, layers: int, heads: tuple[int, int], head_size: int,
    vocab: int, *, tied: bool, qk_norm: bool = False,
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        architecture=architecture, vocab_size=vocab, hidden_size=hidden, intermediate_size=inner,
        num_layers=layers, num_heads=heads[0], num_kv_heads=heads[1], head_size=head_size,
        rms_norm_eps=1e-5, rope_theta=500_000.0, max_position_embeddings=131_072,
        tie_word_embeddings=tied, qk_norm=qk_norm,
    )  # fmt: skip


SHAPES = {
    "llama-3.1-8b": _shape("LlamaForCausalLM", 4096, 14336, 32, (32, 8), 128, 128_256, tied=False),
    "qwen3-0.6b": _shape("Qwen3ForCausalLM", 1024, 3072, 28, (16, 8), 128, 151_936, tied=True, qk_norm=True),
    "smollm2-135m": _shape("LlamaForCausalLM", 576, 1536, 30, (9, 3), 64, 49_152, tied=True),
}
FAKE_SHAPES = {"tiny": _shape("Qwen3ForCausalLM", 32, 48, 1, (4, 2), 16, 96, tied=True, qk_norm=True)}


def random_weights(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """N(0, 0.02) matrices, norms of 1; drawn on the device."""
    generator = torch.Generator(device).manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, 0.02, generator=generator)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=dtype, device=device)

    c = config
    layers = tuple(
        LayerWeights(
            input_norm=ones(c.hidden_size),
            qkv=matrix(c.q_size + 2 * c.kv_size, c.hidden_size),
            qkv_bias=None,
            q_norm=ones(c.head_size) if c.qk_norm else None,
            k_norm=ones(c.head_size) if c.qk_norm else None,
            o=matrix(c.hidden_size, c.q_size),
            post_norm=ones(c.hidden_size),
            gate_up=matrix(2 * c.intermediate_size, c.hidden_size),
            down=matrix(c.hidden_size, c.intermediate_size),
        )
        for _ in range(c.num_layers)
    )
    embed = matrix(c.vocab_size, c.hidden_size)
    head = embed if c.tie_word_embeddings else matrix(c.vocab_size, c.hidden_size)
    return ModelWeights(c, embed, layers, ones(c.hidden_size), head)


def layer_parameters(config: ModelConfig) -> int:
    """Elements of all layers' matrices: what every token is multiplied by."""
    c = config
    per_layer = c.hidden_size * (2 * c.q_size + 2 * c.kv_size + 3 * c.intermediate_size)
    return c.num_layers * per_layer


def decode_floor(config: ModelConfig, batch: int, context: int, element_size: int) -> tuple[float, float]:
    """(bytes, FLOP) of one decode step: weights and head once, every request's K and V once."""
    matrices = layer_parameters(config) + config.vocab_size * config.hidden_size
    kv = batch * context * config.kv_bytes_per_token(element_size)
    attention = 4.0 * batch * context * config.q_size * config.num_layers
    return float(matrices * element_size + kv), 2.0 * batch * matrices + attention


def prefill_floor(config: ModelConfig, tokens: int, history: int, element_size: int) -> tuple[float, float]:
    """(bytes, FLOP) of computing ``tokens`` of one prompt behind ``history``, logits for the last."""
    matrices = layer_parameters(config)
    head = config.vocab_size * config.hidden_size
    pairs = tokens * history + tokens * (tokens + 1) / 2
    flop = 2.0 * tokens * matrices + 2.0 * head + 4.0 * pairs * config.q_size * config.num_layers
    kv = (history + 2 * tokens) * config.kv_bytes_per_token(element_size)
    return float((matrices + head) * element_size + kv), flop
