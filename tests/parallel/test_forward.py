"""A forward over several ranks gives the logits of one rank."""

from __future__ import annotations

import time

import pytest
import torch

from engine.models.architectures import config_from_hf
from engine.models.assemble import Placement, assemble_weights
from engine.models.dense import ReferenceBackend
from engine.models.weights import ModelWeights
from engine.parallel.group import SOLO, CollectiveGroup, RanksLostError
from engine.parallel.shard import Shard
from tests.helpers.forward import chunked_logits
from tests.helpers.tiny_model import ARCHITECTURES, hf_config, random_tensors
from tests.parallel.threads import on_ranks

TOKENS = [5, 380, 12, 383, 7, 0, 191, 192, 193, 288, 95, 96, 1]
BLOCKS = [3, 1, 4, 2]


def weights_of(architecture: str, shard: Shard, **overrides: int) -> ModelWeights:
    raw = hf_config(architecture, **overrides)
    tensors = random_tensors(raw, seed=3)
    placement = Placement(shard, torch.device("cpu"))
    return assemble_weights(
        config_from_hf(raw, "test"), tensors.__getitem__, torch.float64, "test", placement
    )


def logits_of(weights: ModelWeights, group: CollectiveGroup | None) -> torch.Tensor:
    backend = ReferenceBackend(weights, 64, 4, SOLO if group is None else group)
    backend.allocate_kv(6)
    return chunked_logits(backend, TOKENS, [7, 1, 5], BLOCKS, 4)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_one_rank(architecture: str, size: int) -> None:
    """4 heads over 2 KV heads: at size 4 each KV head lives on two ranks."""
    whole = logits_of(weights_of(architecture, Shard(), vocab_size=384), None)
    parts = on_ranks(size, lambda group: logits_of(weights_of(architecture, Shard(group.rank, size)), group))
    for logits in parts:
        assert torch.equal(logits, parts[0])
        torch.testing.assert_close(logits, whole, rtol=1e-6, atol=1e-6)


def test_three_ranks_as_smollm2_has_heads() -> None:
    """9 heads over 3 KV heads, and a hidden size that 3 divides."""
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144}
    whole = logits_of(weights_of("LlamaForCausalLM", Shard(), **shape), None)
    parts = on_ranks(
        3, lambda group: logits_of(weights_of("LlamaForCausalLM", Shard(group.rank, 3), **shape), group)
    )
    for logits in parts:
        assert torch.equal(logits, parts[0])
        torch.testing.assert_close(logits, whole, rtol=1e-6, atol=1e-6)


def test_a_vocabulary_that_does_not_divide() -> None:
    vocab = {"vocab_size": 385}
    whole = logits_of(weights_of("LlamaForCausalLM", Shard(), **vocab), None)
    parts = on_ranks(
        4, lambda group: logits_of(weights_of("LlamaForCausalLM", Shard(group.rank, 4), **vocab), group)
    )
    assert whole.shape[1] == 385
    for logits in parts:
        torch.testing.assert_close(logits, whole, rtol=1e-6, atol=1e-6)


def test_collectives() -> None:
    def work(group: CollectiveGroup) -> tuple[list[float], list[list[float]]]:
        x = torch.tensor([[1.0, 2.0]]) * (group.rank + 1)
        gathered = group.all_gather(x)
        return group.all_reduce(x).flatten().tolist(), gathered.tolist()

    assert on_ranks(3, work) == [([6.0, 12.0], [[1.0, 2.0, 2.0, 4.0, 3.0, 6.0]])] * 3


def test_a_rank_that_does_not_come_ends_the_others_wait() -> None:
    began = time.monotonic()

    def work(group: CollectiveGroup) -> str:
        if group.rank == 1:
            time.sleep(2.5)
            return ""
        with pytest.raises(RanksLostError) as caught:
            group.all_reduce(torch.ones(1))
        return str(caught.value)

    message = on_ranks(2, work, timeout_s=1.0)[0]
    assert message.startswith("the other ranks did not answer: ")
    assert time.monotonic() - began < 20
