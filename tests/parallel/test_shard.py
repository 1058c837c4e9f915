"""Who holds which part of a tensor, and which sizes are refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.errors import InvalidInputError
from engine.models.assemble import Placement, assemble_weights, tensor_shapes
from engine.models.config import ModelConfig
from engine.models.weights import ModelWeights
from engine.parallel.shard import Shard, check_divisible

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    architecture="Qwen2ForCausalLM",
    vocab_size=10,
    hidden_size=6,
    intermediate_size=8,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_size=2,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=32,
    tie_word_embeddings=False,
    qkv_bias=True,
    qk_norm=True,
)
SMOLLM2 = dataclasses.replace(CONFIG, num_heads=9, num_kv_heads=3, intermediate_size=1536)


def numbered(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Every element of every tensor has a value of its own."""
    tensors, start = {}, 0
    for name, shape in tensor_shapes(config).items():
        count = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + count, dtype=torch.float64).reshape(shape)
        start += count
    return tensors


def part(size: int, rank: int, config: ModelConfig = CONFIG) -> ModelWeights:
    tensors = numbered(config)
    return assemble_weights(
        config, tensors.__getitem__, torch.float64, "test", Placement(Shard(rank, size), CPU)
    )


@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_all_ranks_are_the_whole(size: int) -> None:
    whole, parts = part(1, 0), [part(size, rank) for rank in range(size)]
    layers = [one.layers[0] for one in parts]
    layer, q, kv = whole.layers[0], CONFIG.q_size, CONFIG.kv_size

    def fused(pieces: list[torch.Tensor], lengths: list[int]) -> torch.Tensor:
        """Each rank's q (gate), then each rank's k (up), …: the order of the whole matrix."""
        split = [piece.split([length // size for length in lengths]) for piece in pieces]
        return torch.cat([piece for kind in zip(*split, strict=True) for piece in kind])

    assert torch.equal(fused([one.qkv for one in layers], [q, kv, kv]), layer.qkv)
    biases = [one.qkv_bias for one in layers if one.qkv_bias is not None]
    assert layer.qkv_bias is not None
    assert torch.equal(fused(biases, [q, kv, kv]), layer.qkv_bias)
    inner = CONFIG.intermediate_size
    assert torch.equal(fused([one.gate_up for one in layers], [inner, inner]), layer.gate_up)
    assert torch.equal(torch.cat([one.o for one in layers], dim=1), layer.o)
    assert torch.equal(torch.cat([one.down for one in layers], dim=1), layer.down)
    for name in ("input_norm", "post_norm", "q_norm", "k_norm"):
        assert all(torch.equal(getattr(one, name), getattr(layer, name)) for one in layers)
    for name in ("embed", "lm_head"):
        rows = torch.cat([getattr(one, name) for one in parts])
        assert torch.equal(rows[: CONFIG.vocab_size], getattr(whole, name))
        assert torch.equal(rows[CONFIG.vocab_size :], torch.zeros(len(rows) - CONFIG.vocab_size, 6).double())


def test_with_fewer_kv_heads_than_ranks_neighbours_hold_the_same_head() -> None:
    config = dataclasses.replace(CONFIG, num_kv_heads=2)
    key_of = numbered(config)["model.layers.0.self_attn.k_proj.weight"]
    for rank in range(4):
        weights = part(4, rank, config)
        assert (weights.config.num_heads, weights.config.num_kv_heads) == (2, 1)
        head = rank // 2  # query heads 2·rank and 2·rank + 1 belong to it: 4 query heads share a KV head
        assert torch.equal(weights.layers[0].qkv[4:6], key_of[2 * head : 2 * head + 2])


def test_a_rank_keeps_the_vocabulary_of_the_model() -> None:
    weights = part(4, 3)
    assert weights.config.vocab_size == 10
    assert weights.embed.shape == (3, 6)
    assert weights.config == Shard(3, 4).local_config(CONFIG)


@pytest.mark.parametrize(
    ("config", "size", "why"),
    [
        (SMOLLM2, 2, "9 attention heads can't be divided by it; possible for this model: 1, 3"),
        (dataclasses.replace(CONFIG, num_heads=6, num_kv_heads=3), 2, "3 KV heads can neither"),
        (dataclasses.replace(CONFIG, intermediate_size=9), 2, "intermediate size 9 can't be divided"),
    ],
)
def test_sizes_that_do_not_divide_the_model(config: ModelConfig, size: int, why: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_divisible(config, size)
    assert (caught.value.field, caught.value.value) == ("tensor_parallel_size", size)
    assert why in caught.value.allowed


def test_sizes_that_divide_it() -> None:
    check_divisible(SMOLLM2, 3)
    for size in (1, 2, 4, 8):
        check_divisible(CONFIG, size)
