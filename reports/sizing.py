"""What a model needs on a GPU, by closed formulas: weights, KV cache, requests that fit, and roofline times.

The roofline (Williams, Waterman, Patterson 2009): a step takes at least as long as its arithmetic at the peak
rate, and at least as long as its memory traffic at the peak bandwidth; the longer of the two is the bound.
Real steps are slower. Symbols: L layers, h hidden size, i intermediate size, q query heads, g KV heads, D
head size, V vocabulary, P parameters, w and e bytes of a weight and of a KV element.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

BYTES: dict[str, float] = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5}
"""Bytes of a weight by format; the scales of quantised formats (a few percent) are left out."""
GB, GIB = 1e9, float(2**30)


@dataclass(frozen=True)
class Model:
    """Shape of a dense decoder (RMSNorm, GQA with RoPE, SwiGLU)."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of all layers: L · (2·h·q·D + 2·h·g·D + 3·h·i + 2·h), biases and q/k norms where there are."""
        q, kv = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        one = 2 * self.hidden_size * q + 2 * self.hidden_size * kv
        one += 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        one += (q + 2 * kv) if self.qkv_bias else 0
        one += 2 * self.head_size if self.qk_norm else 0
        return self.num_layers * one

    @property
    def parameters(self) -> int:
        """Layers, embedding (twice when it is not tied to the output matrix), last norm."""
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.layer_parameters + embeddings + self.hidden_size

    @property
    def read_parameters(self) -> int:
        """Read in every step: the layers and the output matrix (of the embedding only a row a token)."""
        return self.layer_parameters + self.vocab_size * self.hidden_size + self.hidden_size

    def weight_bytes(self, bytes_per_weight: float) -> float:
        return self.parameters * bytes_per_weight

    def kv_bytes_per_token(self, bytes_per_element: float) -> float:
        """K and V over all layers: 2 · L · g · D · e."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_element


@dataclass(frozen=True)
class Gpu:
    """Peak figures of one GPU; ``fp8_tflops`` None: it has no fp8 units, fp8 weights compute in bf16."""

    name: str
    memory_gb: float
    bandwidth_gb_s: float
    bf16_tflops: float
    source: str
    fp8_tflops: float | None = None

    def flops(self, weights: str) -> float:
        """Peak rate in FLOP/s; int4 weights are unpacked and compute in bf16."""
        rate = self.fp8_tflops if weights == "fp8" and self.fp8_tflops is not None else self.bf16_tflops
        return rate * 1e12


@dataclass(frozen=True)
class Setup:
    """How it is served: ``gpus`` share weights, KV cache and work evenly (tensor parallel, no losses)."""

    gpus: int = 1
    weights: str = "bf16"
    kv: str = "bf16"
    gpu_memory_utilization: float = 0.9
    reserve_gb: float = 2.0
    """Activations, graphs and the like, per GPU."""
    block_size: int = 16
    input_len: int = 1024
    output_len: int = 256
    batch: int = 32


@dataclass(frozen=True)
class Bound:
    """A step's lower bound in seconds and which side sets it: ``compute`` or ``memory``."""

    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def side(self) -> str:
        return "compute" if self.compute_s >= self.memory_s else "memory"


@dataclass(frozen=True)
class Sizing:
    """A model on a GPU in a setup. ``None`` where the weights do not fit."""

    weights_gb: float
    kv_token_bytes: float
    kv_gb: float
    """Left for the KV cache, over all GPUs; negative when the weights do not fit."""
    kv_blocks: int
    kv_tokens: int
    requests: int
    """Requests of input + output tokens that fit at the same time, in whole blocks."""
    prefill: Bound
    """Of one prompt."""
    decode: Bound
    """Of one step with the batch, half-way through its outputs."""
    batch_fits: bool
    ridge_batch: float | None
    """Batch from which on a decode step is bound by compute; None: never, at this context length."""

    @property
    def fits(self) -> bool:
        return self.requests >= 1


def size(model: Model, gpu: Gpu, setup: Setup) -> Sizing:
    """All figures of the calculator."""
    w, e = BYTES[setup.weights], BYTES[setup.kv]
    weights, per_token = model.weight_bytes(w), model.kv_bytes_per_token(e)
    usable = gpu.memory_gb * GB * setup.gpu_memory_utilization - setup.reserve_gb * GB
    left = setup.gpus * usable - weights
    blocks = max(0, int(left // (per_token * setup.block_size)))
    per_request = -(-(setup.input_len + setup.output_len) // setup.block_size)
    requests = blocks // per_request
    context = setup.input_len + setup.output_len / 2
    return Sizing(
        weights_gb=weights / GB,
        kv_token_bytes=per_token,
        kv_gb=left / GB,
        kv_blocks=blocks,
        kv_tokens=blocks * setup.block_size,
        requests=requests,
        prefill=prefill_bound(model, gpu, setup, setup.input_len),
        decode=decode_bound(model, gpu, setup, setup.batch, context),
        batch_fits=setup.batch <= requests,
        ridge_batch=ridge_batch(model, gpu, setup, context),
    )


def prefill_bound(model: Model, gpu: Gpu, setup: Setup, tokens: int) -> Bound:
    """One prompt of n tokens: 2·n·P_layers + 2·h·V (logits of the last token only) + 2·L·q·D·n² (causal
    attention: half of QKᵀ and of the product with V) FLOP; the weights are read and n tokens of KV written.
    """
    flop = 2.0 * tokens * model.layer_parameters + 2.0 * model.hidden_size * model.vocab_size
    flop += 2.0 * model.num_layers * model.num_heads * model.head_size * tokens**2
    moved = model.read_parameters * BYTES[setup.weights]
    moved += tokens * model.kv_bytes_per_token(BYTES[setup.kv])
    return _bound(flop, moved, gpu, setup)


def decode_bound(model: Model, gpu: Gpu, setup: Setup, batch: int, context: float) -> Bound:
    """A step of B requests at context c: B · (2·P_read + 4·L·q·D·c) FLOP; the weights are read once and the
    KV of B·c tokens.
    """
    flop = batch * (
        2.0 * model.read_parameters + 4.0 * model.num_layers * model.num_heads * model.head_size * context
    )
    moved = model.read_parameters * BYTES[setup.weights]
    moved += batch * context * model.kv_bytes_per_token(BYTES[setup.kv])
    return _bound(flop, moved, gpu, setup)


def ridge_batch(model: Model, gpu: Gpu, setup: Setup, context: float) -> float | None:
    """Batch at which both sides of ``decode_bound`` are equal; None when memory is longer at any batch."""
    one, none = decode_bound(model, gpu, setup, 1, context), decode_bound(model, gpu, setup, 0, context)
    growth = one.compute_s - (one.memory_s - none.memory_s)
    return none.memory_s / growth if growth > 0 else None


def _bound(flop: float, moved: float, gpu: Gpu, setup: Setup) -> Bound:
    return Bound(
        flop / (gpu.flops(setup.weights) * setup.gpus), moved / (gpu.bandwidth_gb_s * GB * setup.gpus)
    )


@cache
def presets() -> tuple[Sequence[Model], Sequence[Gpu]]:
    """The shipped models and GPUs."""
    raw = tomllib.loads(files("reports.dashboard").joinpath("sizing.toml").read_text(encoding="utf-8"))
    return [Model(**model) for model in raw["model"]], [Gpu(**gpu) for gpu in raw["gpu"]]
