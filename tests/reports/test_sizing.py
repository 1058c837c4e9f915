"""The calculator against published sizes and against formulas written out once more, by other means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from reports.sizing import BYTES, Gpu, Model, Setup, decode_bound, presets, size

PUBLISHED = {
    "SmolLM2-135M": 134_515_008,
    "Qwen3-0.6B": 596_049_920,
    "Llama-3.2-1B": 1_235_814_400,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen2.5-7B": 7_615_616_512,
    "Llama-3.1-8B": 8_030_261_248,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Llama-3.1-70B": 70_553_706_496,
}
"""Elements in the published safetensors files."""
MODELS, GPUS = presets()
TINY = Model("tiny", 8, 16, 2, 4, 2, 2, 10, tie_word_embeddings=False)
CARD = Gpu("card", memory_gb=1e-5, bandwidth_gb_s=1e-6, bf16_tflops=1e-9, source="made up")
"""10,000 bytes, 1,000 bytes/s, 1,000 FLOP/s."""


def model(name: str) -> Model:
    return next(m for m in MODELS if m.name == name)


def test_parameters_are_those_of_the_published_files():
    assert {m.name: m.parameters for m in MODELS} == PUBLISHED


@pytest.mark.parametrize(
    ("name", "kib"),
    [("SmolLM2-135M", 22.5), ("Llama-3.1-8B", 128), ("Llama-3.1-70B", 320), ("Qwen2.5-7B", 56)],
)
def test_kv_bytes_of_a_token(name, kib):
    assert model(name).kv_bytes_per_token(BYTES["bf16"]) == kib * 1024
    assert model(name).kv_bytes_per_token(BYTES["fp8"]) == kib * 512


def test_the_engine_counts_the_same_kv_bytes():
    from engine.models.config import ModelConfig

    smollm = model("SmolLM2-135M")
    config = ModelConfig(
        architecture="LlamaForCausalLM", vocab_size=49152, hidden_size=576, intermediate_size=1536,
        num_layers=30, num_heads=9, num_kv_heads=3, head_size=64, rms_norm_eps=1e-5, rope_theta=1e5,
        max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    assert smollm.kv_bytes_per_token(2.0) == config.kv_bytes_per_token(2)


def test_a_tiny_model_counted_matrix_by_matrix():
    q = k = v = o = 0
    q, k, v, o = 8 * 8, 8 * 4, 8 * 4, 8 * 8
    layer = q + k + v + o + 3 * 8 * 16 + 8 + 8
    assert TINY.layer_parameters == 2 * layer
    assert TINY.parameters == 2 * layer + 2 * 10 * 8 + 8
    assert replace(TINY, tie_word_embeddings=True).parameters == 2 * layer + 10 * 8 + 8
    assert replace(TINY, qkv_bias=True).layer_parameters == 2 * (layer + 8 + 4 + 4)
    assert replace(TINY, qk_norm=True).layer_parameters == 2 * (layer + 2 + 2)
    assert TINY.read_parameters == TINY.parameters - 10 * 8


def test_capacity_in_whole_blocks():
    setup = Setup(gpu_memory_utilization=1.0, reserve_gb=0.0, block_size=4, input_len=5, output_len=2)
    found = size(TINY, CARD, setup)
    left = 10_000 - 2 * TINY.parameters
    per_token = 2 * 2 * 2 * 2 * 2
    blocks = left // (per_token * 4)
    assert found.kv_token_bytes == per_token
    assert (found.kv_blocks, found.kv_tokens) == (blocks, 4 * blocks)
    assert found.requests == blocks // 2  # 7 tokens need 2 blocks of 4
    assert found.kv_gb * 1e9 == pytest.approx(left)


def test_times_against_sums_over_single_tokens():
    """Prefill attention as a sum over positions, decode as a loop over requests: the forms must agree."""
    setup = Setup(input_len=6, output_len=2, batch=3)
    found = size(TINY, CARD, setup)
    heads = TINY.num_heads * TINY.head_size
    n = setup.input_len
    attention = sum(4 * TINY.num_layers * heads * (p + 0.5) for p in range(n))
    flop = 2 * n * TINY.layer_parameters + 2 * 8 * 10 + attention
    assert found.prefill.compute_s == pytest.approx(flop / 1000)
    assert found.prefill.memory_s == pytest.approx((2 * TINY.read_parameters + n * 32) / 1000)
    context = 7
    flop = sum(2 * TINY.read_parameters + 4 * TINY.num_layers * heads * context for _ in range(3))
    assert found.decode.compute_s == pytest.approx(flop / 1000)
    assert found.decode.memory_s == pytest.approx((2 * TINY.read_parameters + 3 * context * 32) / 1000)
    assert found.decode.seconds == max(found.decode.compute_s, found.decode.memory_s)


def test_at_the_ridge_both_sides_are_equal():
    llama, h100 = model("Llama-3.1-8B"), next(g for g in GPUS if g.name == "H100 SXM")
    setup = Setup(input_len=16, output_len=16)
    found = size(llama, h100, setup)
    assert found.ridge_batch is not None
    below = decode_bound(llama, h100, setup, math.floor(found.ridge_batch), 24)
    above = decode_bound(llama, h100, setup, math.ceil(found.ridge_batch), 24)
    assert (below.side, above.side) == ("memory", "compute")
    assert size(llama, h100, replace(setup, input_len=100_000)).ridge_batch is None


def test_two_gpus_halve_the_times_and_hold_what_one_can_not():
    llama, h100 = model("Llama-3.1-70B"), next(g for g in GPUS if g.name == "H100 SXM")
    one, four = size(llama, h100, Setup()), size(llama, h100, Setup(gpus=4))
    assert not one.fits
    assert one.kv_gb < 0
    assert (one.kv_blocks, one.requests) == (0, 0)
    assert four.fits
    assert four.decode.seconds == pytest.approx(one.decode.seconds / 4)
    assert four.kv_gb == pytest.approx(4 * (80 * 0.9 - 2) - llama.parameters * 2 / 1e9)


def test_fp8_computes_faster_only_where_there_are_units():
    a100, h100 = GPUS[0], GPUS[1]
    assert a100.flops("fp8") == a100.flops("bf16") == 312e12
    assert h100.flops("fp8") == 1979e12
    assert h100.flops("int4") == h100.flops("bf16")
    assert all(g.source for g in GPUS)
