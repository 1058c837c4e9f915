"""The reference backend against transformers in float32: whole prompts, chunks, decode steps, batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.models.dense import ReferenceBackend
from engine.models.loader import load_model
from tests.helpers.forward import chunked_logits, forward_batch
from tests.helpers.tiny_model import ARCHITECTURES, VOCAB_SIZE

BLOCK_SIZE = 4
NUM_BLOCKS = 40
LENGTH = 37
# Out of order, so that nothing works by luck on contiguous blocks.
BLOCKS = [17, 3, 29, 8, 1, 22, 11, 36, 5, 14]

Oracle = Callable[[Path, list[int]], torch.Tensor]
TinyFolder = Callable[..., Path]


def token_ids(length: int = LENGTH, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def backend_of(folder: Path, dtype: str = "float32") -> ReferenceBackend:
    model = load_model(EngineConfig(model=str(folder), dtype=dtype))
    backend = ReferenceBackend(model.weights, model.max_model_len, BLOCK_SIZE)
    backend.allocate_kv(NUM_BLOCKS)
    for cache in backend._key_caches + backend._value_caches:
        cache.fill_(torch.nan)  # whatever was never written must not matter
    return backend


def assert_equal_logits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    # The tolerance means something: the logits are far larger than it.
    assert theirs.std() > 0.5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "chunks",
    [[LENGTH], [16, 16, 5], [1] * LENGTH, [30, 1, 1, 1, 1, 1, 1, 1], [3, 7, 11, 13, 3]],
    ids=["whole", "chunked", "one-by-one", "prefill-decode", "ragged"],
)
def test_logits_equal_transformers(
    architecture: str, chunks: list[int], tiny_folder: TinyFolder, oracle_logits: Oracle
) -> None:
    folder, ids = tiny_folder(architecture), token_ids()
    ours = chunked_logits(backend_of(folder), ids, chunks, BLOCKS, BLOCK_SIZE)
    assert_equal_logits(ours, oracle_logits(folder, ids))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ],
    ids=["linear", "llama3", "theta"],
)
def test_rope_variants_equal_transformers(rope: dict, tiny_folder: TinyFolder, oracle_logits: Oracle) -> None:
    plain, folder, ids = tiny_folder("LlamaForCausalLM"), tiny_folder("LlamaForCausalLM", **rope), token_ids()
    theirs = oracle_logits(folder, ids)
    assert_equal_logits(chunked_logits(backend_of(folder), ids, [20, 17], BLOCKS, BLOCK_SIZE), theirs)
    assert (theirs - oracle_logits(plain, ids)).abs().max() > 0.01  # the variant changes something


def test_a_mixed_batch_equals_each_request_alone(tiny_folder: TinyFolder, oracle_logits: Oracle) -> None:
    """A prefill, a second chunk, and a decode step share one forward."""
    folder = tiny_folder("Qwen3ForCausalLM")
    backend = backend_of(folder)
    first, second, third = token_ids(9, seed=2), token_ids(11, seed=3), token_ids(13, seed=4)
    blocks = [[4, 9, 2], [7, 1, 30], [12, 33, 6, 20]]
    backend.forward(forward_batch([(second[:5], 0, blocks[1]), (third[:12], 0, blocks[2])], BLOCK_SIZE))
    batch = forward_batch(
        [(first, 0, blocks[0]), (second[5:], 5, blocks[1]), (third[12:], 12, blocks[2])], BLOCK_SIZE
    )
    ours = backend.forward(batch)
    theirs = [
        oracle_logits(folder, first),
        oracle_logits(folder, second)[5:],
        oracle_logits(folder, third)[12:],
    ]
    assert_equal_logits(ours, torch.cat(theirs))


def test_only_the_wanted_rows_come_back(tiny_folder: TinyFolder) -> None:
    folder, ids = tiny_folder("LlamaForCausalLM"), token_ids(10)
    everything = backend_of(folder).forward(forward_batch([(ids, 0, BLOCKS)], BLOCK_SIZE))
    batch = forward_batch([(ids, 0, BLOCKS)], BLOCK_SIZE)
    batch.logits_indices = torch.tensor([9, 2])
    torch.testing.assert_close(backend_of(folder).forward(batch), everything[[9, 2]], atol=1e-5, rtol=0)


def test_blocks_of_others_are_left_alone(tiny_folder: TinyFolder) -> None:
    backend = backend_of(tiny_folder("LlamaForCausalLM"))
    backend.forward(forward_batch([(token_ids(6), 0, [5, 7])], BLOCK_SIZE))
    for cache in backend._key_caches + backend._value_caches:
        written = ~cache.isnan().flatten(2).any(-1)  # [num_blocks, block_size]
        assert written.nonzero().tolist() == [[5, 0], [5, 1], [5, 2], [5, 3], [7, 0], [7, 1]]


def test_bfloat16_follows_float32(tiny_folder: TinyFolder, oracle_logits: Oracle) -> None:
    folder, ids = tiny_folder("Qwen2ForCausalLM"), token_ids()
    ours = chunked_logits(backend_of(folder, "bfloat16"), ids, [LENGTH], BLOCKS, BLOCK_SIZE)
    theirs = oracle_logits(folder, ids)
    # 8 bits of mantissa over two layers: the error stays a few per cent of the logits' spread.
    assert (ours - theirs).std() < 0.05 * theirs.std()
    assert (ours - theirs).std() > 0


def test_kv_bytes_are_those_allocated(tiny_folder: TinyFolder) -> None:
    backend = backend_of(tiny_folder("LlamaForCausalLM"))
    caches = backend._key_caches + backend._value_caches
    assert sum(cache.nbytes for cache in caches) == NUM_BLOCKS * backend.kv_bytes_per_block()
