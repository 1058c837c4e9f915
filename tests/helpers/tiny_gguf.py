"""Writes a tiny model as GGUF with the ``gguf`` library, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from tokenizers import Tokenizer

from engine.models.gguf_loader import hf_name
from tests.helpers.tiny_model import CHAT_TEMPLATE, EOS_TOKEN_ID, SPECIAL_TOKENS, VOCAB_SIZE

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_LEAVES = (
    "attn_norm.weight", "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias", "attn_v.weight",
    "attn_v.bias",
    "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight",
    "ffn_up.weight", "ffn_down.weight",
)  # fmt: skip


def permute(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp's row order of q and k: halves (i, i + D/2) become neighbours."""
    half = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_tiny_gguf(
    path: Path,
    raw: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    tokenizer: Tokenizer,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    rope_freqs: list[float] | None = None,
    edit: Callable[[GGUFWriter], None] | None = None,
) -> Path:
    """Write ``tensors`` (Hugging Face names) with the config ``raw`` to ``path``.

    Args:
        matrix_type: of every matrix; vectors stay float32, as llama.cpp keeps them.
        rope_freqs: divisors of the rotary frequencies. edit: adds further metadata.
    """
    arch = _ARCHITECTURES[raw["model_type"]]
    writer = GGUFWriter(path, arch)
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_key_length(raw["head_dim"])
    writer.add_value_length(raw["head_dim"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_rope_freq_base(raw["rope_theta"])
    writer.add_vocab_size(raw["vocab_size"])
    if arch == "llama":
        writer.add_rope_dimension_count(raw["head_dim"])
    _add_tokenizer(writer, tokenizer)
    if edit:
        edit(writer)
    for stored in gguf_names(raw["num_hidden_layers"]):
        name = hf_name(stored)
        if name not in tensors:
            continue
        values = tensors[name]
        if arch == "llama" and "attn_q." in stored:
            values = permute(values, raw["num_attention_heads"])
        elif arch == "llama" and "attn_k." in stored:
            values = permute(values, raw["num_key_value_heads"])
        array = values.numpy().astype(np.float32)
        kind = matrix_type if array.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(stored, quantize(array, kind), raw_dtype=kind)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_names(num_layers: int) -> list[str]:
    layers = [f"blk.{index}.{leaf}" for index in range(num_layers) for leaf in _LEAVES]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *layers]


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    names = [tokenizer.id_to_token(index) or f"[unused{index}]" for index in range(VOCAB_SIZE)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([3 if name in SPECIAL_TOKENS else 1 for name in names])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
