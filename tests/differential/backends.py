"""The tiny model that every scenario runs on: random weights, sharp enough logits, all the features on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.models.backend import ModelBackend
from engine.models.config import ModelConfig
from engine.models.dense import ReferenceBackend
from engine.models.weights import LayerWeights, ModelWeights
from tests.differential.scenario import FULL, MAX_MODEL_LEN, SMALL, VOCAB_SIZE, Size
from tests.helpers import random_models

BackendFactory = Callable[[int], ModelBackend]
"""Block size -> a fresh backend on the tiny model."""

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


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A backend under test and what each request is held against when it runs alone."""

    name: str
    batched: BackendFactory
    alone: BackendFactory
    size: Size = FULL


def reference_float64() -> Arithmetic:
    """The oracle's arithmetic: in float64 no order of additions can change a token."""
    weights = tiny_weights(torch.float64)

    def backend(block_size: int) -> ModelBackend:
        return ReferenceBackend(weights, MAX_MODEL_LEN, block_size)

    return Arithmetic("reference", backend, backend)


def native_float32() -> Arithmetic:
    """The native CPU kernels in float32, also alone."""
    from engine.kernels.cpu.backend import CpuBackend

    weights = tiny_weights(torch.float32)

    def backend(block_size: int) -> ModelBackend:
        return CpuBackend(weights, MAX_MODEL_LEN, block_size, "none", 1)

    return Arithmetic("cpu", backend, backend)


def triton_float32() -> Arithmetic:
    """The Triton kernels in float32, in Triton's interpreter, or on a GPU when there is one; alone, the
    reference in float64 on the same weights: stricter, and as good as free.
    """
    from tests.helpers.triton_mode import choose_triton_mode

    device = choose_triton_mode()
    from engine.kernels.triton.backend import TritonBackend

    weights = tiny_weights(torch.float32)
    wide = random_models.cast(weights, torch.float64)
    return Arithmetic(
        "triton",
        lambda block_size: TritonBackend(weights, MAX_MODEL_LEN, block_size, device=device, max_num_seqs=8),
        lambda block_size: ReferenceBackend(wide, MAX_MODEL_LEN, block_size),
        SMALL,
    )


BACKENDS = {"reference": reference_float64, "cpu": native_float32, "triton": triton_float32}
