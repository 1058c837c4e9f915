"""The tiny model that every scenario runs on: random weights, sharp enough logits, all the features on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.models.backend import ModelBackend
from engine.models.config import ModelConfig
from engine.models.dense import ReferenceBackend
from engine.models.weights import LayerWeights, ModelWeights
from tests.differential.scenario import MAX_MODEL_LEN, VOCAB_SIZE

CONFIG = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=MAX_MODEL_LEN,
    tie_word_embeddings=True,
    qkv_bias=True,
    qk_norm=True,
)


def tiny_weights(dtype: torch.dtype) -> ModelWeights:
    random = torch.Generator().manual_seed(7)

    def draw(*shape: int, scale: float = 0.35) -> torch.Tensor:
        return (torch.randn(*shape, generator=random, dtype=torch.float64) * scale).to(dtype)

    c = CONFIG
    layers = tuple(
        LayerWeights(
            input_norm=1 + draw(c.hidden_size),
            qkv=draw(c.q_size + 2 * c.kv_size, c.hidden_size),
            qkv_bias=draw(c.q_size + 2 * c.kv_size),
            q_norm=1 + draw(c.head_size),
            k_norm=1 + draw(c.head_size),
            o=draw(c.hidden_size, c.q_size),
            post_norm=1 + draw(c.hidden_size),
            gate_up=draw(2 * c.intermediate_size, c.hidden_size),
            down=draw(c.hidden_size, c.intermediate_size),
        )
        for _ in range(c.num_layers)
    )
    embed = draw(c.vocab_size, c.hidden_size, scale=0.7)
    return ModelWeights(c, embed, layers, 1 + draw(c.hidden_size), embed)


def reference_float64() -> Callable[[int], ModelBackend]:
    """The oracle's arithmetic: in float64 no order of additions can change a token."""
    weights = tiny_weights(torch.float64)
    return lambda block_size: ReferenceBackend(weights, MAX_MODEL_LEN, block_size)


def native_float32() -> Callable[[int], ModelBackend]:
    """The native CPU kernels in float32."""
    from engine.kernels.cpu.backend import CpuBackend

    weights = tiny_weights(torch.float32)
    return lambda block_size: CpuBackend(weights, MAX_MODEL_LEN, block_size, "none", 1)


def triton_float32() -> Callable[[int], ModelBackend]:
    """The Triton kernels in float32: in Triton's interpreter, or on a GPU when there is one."""
    from tests.helpers.triton_mode import choose_triton_mode

    device = choose_triton_mode()
    from engine.kernels.triton.backend import TritonBackend

    weights = tiny_weights(torch.float32)
    return lambda block_size: TritonBackend(weights, MAX_MODEL_LEN, block_size, device=device, max_num_seqs=8)


BACKENDS = {"reference": reference_float64, "cpu": native_float32, "triton": triton_float32}
