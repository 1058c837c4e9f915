"""GGUF: header, dequantisation, row order, architectures; oracles are the gguf library and transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.model_store import ModelSource
from engine.models.dense import ReferenceBackend
from engine.models.description import load_model_config
from engine.models.gguf_file import GGUFTensorInfo, read_gguf
from engine.models.gguf_loader import dequantized, unpermuted
from engine.models.loader import load_model
from tests.helpers.forward import chunked_logits
from tests.helpers.gguf_oracle import transformers_from_gguf
from tests.helpers.tiny_gguf import permute, write_tiny_gguf
from tests.helpers.tiny_model import VOCAB_SIZE, hf_config, random_tensors, tiny_tokenizer

IDS = torch.randint(0, VOCAB_SIZE, (23,), generator=torch.Generator().manual_seed(5)).tolist()
BLOCKS = [3, 1, 4, 2]


def write(folder: Path, architecture: str = "LlamaForCausalLM", **options: Any) -> Path:
    config_keys = {key: options.pop(key) for key in list(options) if key in ("hidden_size", "head_dim")}
    raw = hf_config(architecture, **config_keys)
    return write_tiny_gguf(folder / "tiny.gguf", raw, random_tensors(raw, 0), tiny_tokenizer(), **options)


def logits_of(path: Path) -> torch.Tensor:
    model = load_model(EngineConfig(model=str(path), dtype="float32"))
    backend = ReferenceBackend(model.weights, 64, 8)
    backend.allocate_kv(5)
    return chunked_logits(backend, IDS, [len(IDS)], BLOCKS, 8)


def test_header_equals_the_gguf_librarys(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_array("test.integers", [1, -2, 3])
        writer.add_array("test.floats", [0.5, 2.0])
        writer.add_bool("test.yes", True)
        writer.add_float64("test.double", 1e-300)
        writer.add_int64("test.long", -(2**40))
        writer.add_string("test.text", "größe 🙂")

    path = write(tmp_path, matrix_type=Kind.Q8_0, edit=more)
    ours, theirs = read_gguf(path), GGUFReader(path)
    expected = {
        name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")
    }
    assert ours.metadata == expected
    assert ours.metadata["test.text"] == "größe 🙂"
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.type == tensor.tensor_type
        assert ours.raw(tensor.name).tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
)
@pytest.mark.parametrize("shape", [(6, 64), (7, 32), (1024, 64)], ids=str)
def test_quantised_types_round_trip(kind: Kind, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    stored = quantize(values, kind)
    raw = np.frombuffer(stored.tobytes(), dtype=np.uint8)
    ours = dequantized(raw, GGUFTensorInfo("t", shape, kind, 0, raw.size), "test")
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, dequantize(stored, kind))
    assert np.std(ours - values) < (0.12 if kind in (Kind.Q4_0, Kind.Q4_1) else 0.06)


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_k_quants_are_the_librarys(kind: Kind) -> None:
    """The library can't write these, so the bytes are random; scales are kept finite."""
    from gguf.constants import GGML_QUANT_SIZES

    elements, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, size=(8, 2 * size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    for start in (0, size):
        at = [start, start + 2] if kind is not Kind.Q6_K else [start + size - 2]
        for offset in at:
            blocks[:, offset : offset + 2] = scale
    shape = (8, 2 * elements)
    ours = dequantized(blocks.reshape(-1), GGUFTensorInfo("t", shape, kind, 0, blocks.size), "test")
    np.testing.assert_array_equal(ours, dequantize(blocks, kind))
    assert np.isfinite(ours).all()
    assert ours.std() > 0.01


def test_unpermuted_undoes_the_converter() -> None:
    for weight in (torch.arange(24 * 5).reshape(24, 5), torch.arange(24)):
        stored = permute(weight, 3).contiguous()
        assert not torch.equal(stored, weight)
        raw = unpermuted(stored.numpy().view(np.uint8).reshape(-1), 24, 3)
        assert raw.tobytes() == weight.numpy().tobytes()


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
)
def test_gguf_equals_the_safetensors_of_the_same_weights(
    architecture: str,
    tmp_path: Path,
    tiny_folder: Callable[..., Path],
    oracle_logits: Callable[[Path, list[int]], torch.Tensor],
) -> None:
    ours = logits_of(write(tmp_path, architecture))
    torch.testing.assert_close(ours, oracle_logits(tiny_folder(architecture), IDS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0, Kind.F16])
def test_gguf_equals_transformers_reading_the_same_file(kind: Kind, tmp_path: Path) -> None:
    path = write(tmp_path, matrix_type=kind)
    with torch.inference_mode():
        theirs = transformers_from_gguf(path)(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits_of(path), theirs, atol=1e-4, rtol=0)


def test_rope_freqs_equal_llama3_scaling(tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    """A GGUF stores llama3's scaling as divisors; the same model by config must give the same logits."""
    from engine.models.architectures import config_from_hf
    from engine.models.rope import inverse_frequencies

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    scaled = inverse_frequencies(config_from_hf(hf_config(rope_scaling=scaling), "t"))
    plain = inverse_frequencies(config_from_hf(hf_config(), "t"))
    path = write(tmp_path, rope_freqs=(plain / scaled).tolist())
    folder = tiny_folder("LlamaForCausalLM", rope_scaling=scaling)
    torch.testing.assert_close(logits_of(path), logits_of(folder), atol=1e-4, rtol=0)


def test_linear_rope_scaling(tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    def linear(writer: GGUFWriter) -> None:
        from gguf.constants import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.5)

    folder = tiny_folder("LlamaForCausalLM", rope_scaling={"rope_type": "linear", "factor": 2.5})
    torch.testing.assert_close(logits_of(write(tmp_path, edit=linear)), logits_of(folder), atol=1e-4, rtol=0)


def test_description_needs_the_header_only(tmp_path: Path) -> None:
    path = write(tmp_path)
    described = load_model_config(ModelSource("tiny", "gguf", path))
    assert described.eos_token_ids == (2,)
    assert described.max_model_len(None) == 512
    assert described.config.tie_word_embeddings
    assert (described.config.num_heads, described.config.num_kv_heads, described.config.head_size) == (
        4,
        2,
        16,
    )


def add_experts(writer: GGUFWriter) -> None:
    writer.add_expert_count(8)


def add_yarn(writer: GGUFWriter) -> None:
    from gguf.constants import RopeScalingType

    writer.add_rope_scaling_type(RopeScalingType.YARN)


def add_unknown_tensor(writer: GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_output.bias", np.zeros(64, dtype=np.float32))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (add_experts, "mixture of experts (8 experts) is not supported"),
        (add_yarn, "rope scaling 'yarn' is not supported; supported: none, linear, rope_freqs"),
        (
            add_unknown_tensor,
            "LlamaForCausalLM with tensor model.layers.0.self_attn.o_proj.bias is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused(
    edit: Callable[[GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, edit=edit)
    with pytest.raises(ModelLoadError) as caught:
        load_model(EngineConfig(model=str(path), dtype="float32"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelLoadError, match="architecture 'mamba' is not supported; supported: llama, qwen2, qwen3"
    ):
        load_model_config(ModelSource("x", "gguf", tmp_path / "x.gguf"))


@pytest.mark.parametrize("cut", [0, 3, 10, 100, 5000, -1000, -1])
def test_a_file_cut_short_is_one_line(cut: int, tmp_path: Path) -> None:
    whole = write(tmp_path).read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:cut])
    with pytest.raises(ModelLoadError) as caught:
        load_model(EngineConfig(model=str(path), dtype="float32"))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_header_is_an_error_whatever_the_damage(tmp_path: Path) -> None:
    whole = bytearray(write(tmp_path).read_bytes())
    path = tmp_path / "damaged.gguf"
    random = np.random.default_rng(3)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for at in random.integers(0, 12_000, size=8):
            damaged[at] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(damaged)
        try:
            load_model_config(ModelSource("damaged", "gguf", path))
        except ModelLoadError:  # anything else fails the test
            refused += 1
    assert refused > 20
