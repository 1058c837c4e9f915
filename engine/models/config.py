"""What the engine needs to know of a dense decoder-only model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Parameters of the ``linear`` and ``llama3`` rope scalings (HF ``rope_scaling``).

    ``freq_factors`` is what a GGUF file stores instead of llama3's parameters (tensor ``rope_freqs``): one
    divisor per frequency. Backends needn't care: :func:`engine.models.rope.inverse_frequencies` handles
    every kind.
    """

    kind: Literal["linear", "llama3", "freq_factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of RMSNorm, GQA with RoPE (neox style: halves are rotated), SwiGLU.

    Covers Llama, Mistral and SmolLM2 (plain), Qwen2 (``qkv_bias``), Qwen3 (``qk_norm``).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of K and V of one token over all layers: 2·L·g·D·e."""
        return 2 * self.num_layers * self.kv_size * element_size
