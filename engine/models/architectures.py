"""From a model's own description (``config.json`` or GGUF metadata) to :class:`ModelConfig`. No torch.

What the engine can't compute exactly is refused here by name, so that nothing wrong is ever served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig, RopeScaling
from engine.models.gguf_file import GGUFFile

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
_ROPE_FREQS = "rope_freqs.weight"


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Read a Hugging Face ``config.json``.

    Args:
        raw: the parsed file.
        where: named in errors.

    Raises:
        ModelLoadError: unsupported architecture or feature, or a missing key.
    """
    names = raw.get("architectures") or ["(none given)"]
    architecture = next((name for name in names if name in HF_ARCHITECTURES), None)
    if architecture is None:
        raise ModelLoadError(
            f"{where}: architecture {', '.join(map(str, names))} is not supported; "
            f"supported: {', '.join(HF_ARCHITECTURES)}"
        )
    missing = [key for key in _REQUIRED if not isinstance(raw.get(key), int)]
    if missing:
        raise ModelLoadError(f"{where}: config.json of {architecture} lacks {', '.join(missing)}")
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise ModelLoadError(f"{where}: {architecture} with {key}=true is not supported")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelLoadError(
            f"{where}: {architecture} with hidden_act={raw['hidden_act']!r} is not supported; supported: silu"
        )
    num_heads = raw["num_attention_heads"]
    # Qwen3's head size has a default of its own; elsewhere the heads share the hidden size.
    head_size = raw.get("head_dim") or (
        128 if architecture == "Qwen3ForCausalLM" else raw["hidden_size"] // num_heads
    )
    theta, scaling = _hf_rope(raw, where)
    return _checked(
        ModelConfig(
            architecture=architecture,
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=raw.get("num_key_value_heads") or num_heads,
            head_size=head_size,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            max_position_embeddings=raw["max_position_embeddings"],
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            rope_scaling=scaling,
            qkv_bias=architecture == "Qwen2ForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
        ),
        where,
    )


def hf_sliding_window(raw: Mapping[str, Any]) -> int | None:
    """Tokens beyond which some layer would stop attending; None: every layer sees everything."""
    window = raw.get("sliding_window")
    if not window or raw.get("use_sliding_window") is False:
        return None
    if str((raw.get("architectures") or [""])[0]).startswith("Qwen") and not raw.get("use_sliding_window"):
        return None
    return int(window)


def _hf_rope(raw: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """Old files have ``rope_theta`` and ``rope_scaling``, newer ones ``rope_parameters`` with both in it."""
    rope = dict(raw.get("rope_parameters") or {})
    rope.update(raw.get("rope_scaling") or {})
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if float(rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError(f"{where}: partial_rotary_factor other than 1 is not supported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling("linear", float(rope["factor"]))
        if kind == "llama3":
            return theta, RopeScaling(
                "llama3",
                float(rope["factor"]),
                float(rope["low_freq_factor"]),
                float(rope["high_freq_factor"]),
                int(rope["original_max_position_embeddings"]),
            )
    except KeyError as missing:
        raise ModelLoadError(f"{where}: rope scaling {kind} lacks {missing.args[0]}") from None
    raise ModelLoadError(
        f"{where}: rope scaling {kind!r} is not supported; supported: default, linear, llama3"
    )


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read GGUF metadata (and ``rope_freqs``, when it is there).

    Raises:
        ModelLoadError: unsupported architecture or feature, or a missing key.
    """
    where, name = str(file.path), file.architecture
    architecture = GGUF_ARCHITECTURES.get(name)
    if architecture is None:
        raise ModelLoadError(
            f"{where}: architecture {name!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    if file.get("expert_count"):
        raise ModelLoadError(
            f"{where}: mixture of experts ({file.get('expert_count')} experts) is not supported"
        )
    if "token_embd.weight" not in file.tensors:
        raise ModelLoadError(f"{where}: holds no model (tensor token_embd.weight is missing)")
    try:
        num_heads, hidden_size = int(file.get("attention.head_count")), int(file.get("embedding_length"))
        head_size = int(file.get("attention.key_length") or hidden_size // num_heads)
        if int(file.get("rope.dimension_count") or head_size) != head_size:
            raise ModelLoadError(f"{where}: partial rotary embedding is not supported")
        return _checked(
            ModelConfig(
                architecture=architecture,
                vocab_size=file.tensors["token_embd.weight"].shape[0],
                hidden_size=hidden_size,
                intermediate_size=int(file.get("feed_forward_length")),
                num_layers=int(file.get("block_count")),
                num_heads=num_heads,
                num_kv_heads=int(file.get("attention.head_count_kv") or num_heads),
                head_size=head_size,
                rms_norm_eps=float(file.get("attention.layer_norm_rms_epsilon")),
                rope_theta=float(file.get("rope.freq_base") or 10000.0),
                max_position_embeddings=int(file.get("context_length")),
                tie_word_embeddings="output.weight" not in file.tensors,
                rope_scaling=_gguf_rope_scaling(file),
                qkv_bias=name == "qwen2",
                qk_norm=name == "qwen3",
            ),
            where,
        )
    except TypeError:
        raise ModelLoadError(f"{where}: the metadata of {name} lacks a size or count") from None


def _gguf_rope_scaling(file: GGUFFile) -> RopeScaling | None:
    if _ROPE_FREQS in file.tensors:
        factors = file.raw(_ROPE_FREQS).view("<f4")
        return RopeScaling("freq_factors", freq_factors=tuple(float(factor) for factor in factors))
    kind = file.get("rope.scaling.type") or "none"
    factor = float(file.get("rope.scaling.factor") or file.get("rope.scale_linear") or 1.0)
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeScaling("linear", factor)
    if kind != "none":
        raise ModelLoadError(
            f"{file.path}: rope scaling {kind!r} is not supported; supported: none, linear, rope_freqs"
        )
    return None


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{where}: {config.num_heads} attention heads can't share {config.num_kv_heads} KV heads evenly"
        )
    if config.head_size % 2:
        raise ModelLoadError(f"{where}: head size {config.head_size} is odd; RoPE needs an even one")
    return config
