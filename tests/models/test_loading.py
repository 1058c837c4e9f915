"""Folders of safetensors, dummy weights, dtypes, limits; one clear line for everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError, ModelLoadError
from engine.model_store import ModelSource, resolve_model
from engine.models.description import load_model_config
from engine.models.loader import LoadedModel, load_model
from engine.models.weights import ModelWeights
from tests.helpers.tiny_model import hf_config, make_tiny_model


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_model(EngineConfig(model=str(folder), **{"dtype": "float32", **options}))


def tensors_of(weights: ModelWeights) -> list[torch.Tensor]:
    layers = [
        tensor
        for layer in weights.layers
        for tensor in (getattr(layer, name) for name in layer.__slots__)
        if tensor is not None
    ]
    return [weights.embed, weights.final_norm, weights.lm_head, *layers]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_shards_equal_the_single_file(architecture: str, tmp_path: Path) -> None:
    single = load(make_tiny_model(tmp_path / "single", architecture))
    sharded = load(make_tiny_model(tmp_path / "sharded", architecture, num_shards=3))
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) == 3
    for ours, theirs in zip(tensors_of(sharded.weights), tensors_of(single.weights), strict=True):
        assert torch.equal(ours, theirs)


def test_fused_rows_are_q_k_v_and_gate_up(tmp_path: Path) -> None:
    model = load(make_tiny_model(tmp_path, "Qwen2ForCausalLM"))
    stored = load_file(tmp_path / "model.safetensors")
    layer, prefix = model.weights.layers[1], "model.layers.1."
    parts = [stored[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(layer.qkv, torch.cat(parts))
    biases = [stored[f"{prefix}self_attn.{name}_proj.bias"] for name in "qkv"]
    assert layer.qkv_bias is not None
    assert torch.equal(layer.qkv_bias, torch.cat(biases))
    gate_up = [stored[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(layer.gate_up, torch.cat(gate_up))
    assert torch.equal(model.weights.lm_head, stored["lm_head.weight"])


def test_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    weights = load(make_tiny_model(tmp_path)).weights
    assert weights.lm_head is weights.embed


def test_bfloat16_checkpoint_and_dtype(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    path = tmp_path / "model.safetensors"
    halved = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(halved, path, metadata={"format": "pt"})
    wide, narrow = load(tmp_path), load(tmp_path, dtype="bfloat16")
    assert {tensor.dtype for tensor in tensors_of(wide.weights)} == {torch.float32}
    assert {tensor.dtype for tensor in tensors_of(narrow.weights)} == {torch.bfloat16}
    assert torch.equal(wide.weights.embed, halved["model.embed_tokens.weight"].float())
    half = load(tmp_path, dtype="float16").weights
    assert {tensor.dtype for tensor in tensors_of(half)} == {torch.float16}
    assert torch.equal(half.embed, halved["model.embed_tokens.weight"].half())
    automatic = load(tmp_path, dtype="auto").dtype
    expected = torch.bfloat16 if "avx512_bf16" in Path("/proc/cpuinfo").read_text() else torch.float32
    assert automatic == expected


def test_dummy_needs_only_a_config_and_is_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config("Qwen3ForCausalLM")))
    first, second = load(tmp_path, load_format="dummy"), load(tmp_path, load_format="dummy")
    for ours, theirs in zip(tensors_of(first.weights), tensors_of(second.weights), strict=True):
        assert torch.equal(ours, theirs)
    assert first.weights.layers[0].qkv.std().item() == pytest.approx(0.02, rel=0.1)
    assert first.weights.layers[0].q_norm is not None
    assert first.weights.layers[0].q_norm.eq(1).all()


def test_what_the_model_says_of_itself(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2, 0, 2], "temperature": 0.6, "top_k": 20, "do_sample": True})
    )
    described = load_model_config(resolve_model(str(tmp_path)))
    assert described.eos_token_ids == (2, 0)
    assert described.generation_defaults == {"temperature": 0.6, "top_k": 20.0}
    assert described.vocab_size == 384
    assert described.max_model_len(None) == 512
    assert described.max_model_len(100) == 100
    with pytest.raises(
        InvalidInputError, match=r"max_model_len=513: at most 512 for this model: its limit is there"
    ):
        described.max_model_len(513)


@pytest.mark.parametrize("generation", [{}, {"eos_token_id": None}, None])
def test_eos_falls_back_to_the_config(generation: dict[str, Any] | None, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, eos_token_id=[7, 2])
    path = folder / "generation_config.json"
    if generation is None:
        path.unlink()
    else:
        path.write_text(json.dumps(generation))
    assert load_model_config(resolve_model(str(folder))).eos_token_ids == (7, 2)


def test_sliding_window_limits_the_context(tmp_path: Path) -> None:
    described = load_model_config(
        ModelSource("m", "folder", make_tiny_model(tmp_path, "MistralForCausalLM", sliding_window=128))
    )
    assert described.max_model_len(None) == 128
    with pytest.raises(InvalidInputError, match="at most 128 for this model: sliding-window attention"):
        described.max_model_len(129)


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ({"sliding_window": 64, "use_sliding_window": False}, None),
        ({"sliding_window": 64}, None),  # Qwen's default is not to use it
        ({"sliding_window": 64, "use_sliding_window": True}, 64),
    ],
)
def test_qwen_uses_its_window_only_when_told(
    keys: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path, "Qwen2ForCausalLM", **keys)
    assert load_model_config(ModelSource("m", "folder", folder)).sliding_window == window


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "architecture MixtralForCausalLM is not supported; supported: Llama",
        ),
        ({"architectures": None}, "architecture (none given) is not supported"),
        ({"attention_bias": True}, "LlamaForCausalLM with attention_bias=true is not supported"),
        ({"mlp_bias": True}, "LlamaForCausalLM with mlp_bias=true is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported: silu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
            "rope scaling llama3 lacks low_freq_factor",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
        ({"num_key_value_heads": 3}, "4 attention heads can't share 3 KV heads evenly"),
        ({"hidden_size": None}, "config.json of LlamaForCausalLM lacks hidden_size"),
        ({"hidden_size": 80}, "has shape (64,), the config says (80,)"),
        ({"num_hidden_layers": 3}, "9 tensor(s) missing, the first is model.layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "with tensor model.layers.1.input_layernorm.weight is not supported"),
        ({"tie_word_embeddings": False}, "1 tensor(s) missing, the first is lm_head.weight"),
    ],
)
def test_refusals_name_the_reason(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf_config() | overrides))
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def break_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


def lose_shard(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("damage", [break_config, break_weights, drop_weights, break_index, lose_shard])
def test_damaged_folders_are_one_line(damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(make_tiny_model(tmp_path))
    with pytest.raises(EngineError) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
