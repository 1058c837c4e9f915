"""Weights from a GGUF file: names, dequantisation (the ``gguf`` library's), row order of llama's q and k."""

from __future__ import annotations

import math

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from engine.errors import ModelLoadError
from engine.models.assemble import WHOLE_ON_CPU, Placement, assemble_weights, check_names
from engine.models.config import ModelConfig
from engine.models.gguf_file import GGUFFile, GGUFTensorInfo
from engine.models.weights import ModelWeights

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Read into the config (engine.models.architectures), not into the weights.
_CONFIG_TENSORS = ("rope_freqs.weight",)
_DEQUANTIZE_ROW_BYTES = 64 * 1024


def hf_name(name: str) -> str:
    """GGUF tensor name → Hugging Face name; an unknown name comes back as it is."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def load_gguf_weights(
    file: GGUFFile, config: ModelConfig, dtype: torch.dtype, placement: Placement = WHOLE_ON_CPU
) -> ModelWeights:
    """Dequantise every tensor of ``file`` to float32, then cast to ``dtype``.

    Raises:
        ModelLoadError: a tensor is missing, unknown, of the wrong shape or of a type that can't be
        dequantised.
    """
    where = str(file.path)
    names = {hf_name(name): name for name in file.tensors if name not in _CONFIG_TENSORS}
    check_names(config, names, where)

    def read(name: str) -> torch.Tensor:
        stored = names[name]
        info, raw = file.tensors[stored], file.raw(stored)
        # llama.cpp's converter pairs the rotated rows of q and k ("llama" only); the engine rotates halves.
        if file.architecture == "llama" and ".self_attn.q_proj" in name:
            raw = unpermuted(raw, info.shape[0], config.num_heads)
        elif file.architecture == "llama" and ".self_attn.k_proj" in name:
            raw = unpermuted(raw, info.shape[0], config.num_kv_heads)
        return torch.from_numpy(dequantized(raw, info, where))

    return assemble_weights(config, read, dtype, where, placement)


def dequantized(raw: np.ndarray, info: GGUFTensorInfo, where: str) -> np.ndarray:
    """``raw`` bytes of one tensor → float32 array of its shape.

    Raises:
        ModelLoadError: the ``gguf`` library can't dequantise the type.
    """
    if info.type == GGMLQuantizationType.F32:
        return raw.view("<f4").reshape(info.shape).copy()
    # The library works through groups of 16 rows; quantisation blocks never cross a row's end, so that
    # several rows can be handed over as one long row, which makes it some three times as fast.
    rows = math.prod(info.shape[:-1])
    row_bytes = info.num_bytes // rows
    while rows % 2 == 0 and row_bytes * 2 <= _DEQUANTIZE_ROW_BYTES:
        rows, row_bytes = rows // 2, row_bytes * 2
    try:
        return dequantize(raw.reshape(rows, row_bytes), info.type).reshape(info.shape)
    except NotImplementedError:
        raise ModelLoadError(
            f"{where}: tensor {info.name} has type {info.type.name}, which is not supported"
        ) from None


def unpermuted(raw: np.ndarray, num_rows: int, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's row order: per head, pairs (2i, 2i+1) → halves (i, i + D/2).

    It works on the stored bytes, uint8 ``[n]`` → ``[n]``, whatever the type: a row's bytes lie together.
    """
    half = num_rows // num_heads // 2
    return raw.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(-1)
