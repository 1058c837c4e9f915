"""The whole forward against the reference backend."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from engine.errors import InvalidInputError
from engine.kernels.cpu.backend import CpuBackend
from engine.kernels.cpu.build import InstructionSet
from engine.models.backend import ModelBackend
from engine.models.config import ModelConfig
from engine.models.dense import ReferenceBackend
from tests.helpers.forward import chunked_logits, forward_batch
from tests.helpers.random_models import cast, random_weights, tiny_config
from tests.kernels_cpu.models import DTYPES, Pool, random_tokens, supported_isas

MAX_MODEL_LEN = 700
LENGTHS = (500, 37, 5)
CONFIGS = [
    (tiny_config(8, 4, 2, qkv_bias=True, qk_norm=True), 4),
    (tiny_config(16, 4, 1, tied=False), 16),
    (tiny_config(64, 9, 3), 16),
    (tiny_config(80, 4, 4, qkv_bias=True), 32),
    (tiny_config(96, 2, 1, qk_norm=True), 5),
    (tiny_config(128, 4, 2), 6),
]


def pools(block_size: int) -> tuple[int, list[list[int]]]:
    num_blocks = 1 + sum(-(-n // block_size) for n in LENGTHS)
    pool = Pool.shuffled(num_blocks, block_size)
    return num_blocks, [pool.take(n) for n in LENGTHS]


def native(weights: object, block_size: int, num_blocks: int, **options: object) -> CpuBackend:
    options = {"num_threads": 2} | options
    backend = CpuBackend(weights, MAX_MODEL_LEN, block_size, **options)  # type: ignore[arg-type]
    backend.allocate_kv(num_blocks)
    backend.fill_kv(float("nan"))
    return backend


def run_steps(backend: ModelBackend, block_size: int, all_logits: bool) -> torch.Tensor:
    """Prompts in chunks, then a few decode steps, always in one mixed batch."""
    _, blocks = pools(block_size)
    tokens = [random_tokens(n, seed=n) for n in LENGTHS]
    done = [0, 0, 0]
    logits = []
    for sizes in ([480, 20, 3], [1, 16, 1], [9, 1, 1]):
        parts = [(tokens[i][done[i] : done[i] + size], done[i], blocks[i]) for i, size in enumerate(sizes)]
        logits.append(backend.forward(forward_batch(parts, block_size, all_logits)))
        done = [have + size for have, size in zip(done, sizes, strict=True)]
    return torch.cat(logits)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize(("config", "block_size"), CONFIGS)
def test_float32_logits_match_the_reference(
    config: ModelConfig, block_size: int, isa: InstructionSet
) -> None:
    weights = random_weights(config, torch.float32)
    num_blocks, _ = pools(block_size)
    reference = ReferenceBackend(cast(weights, torch.float64), MAX_MODEL_LEN, block_size)
    reference.allocate_kv(num_blocks)
    wanted = run_steps(reference, block_size, all_logits=True)
    actual = run_steps(native(weights, block_size, num_blocks, isa=isa), block_size, all_logits=True)
    assert (actual - wanted).abs().max().item() < 1e-4
    assert torch.equal(actual.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize(("config", "block_size"), CONFIGS)
def test_bfloat16_logits_stay_near_float32_with_the_same_weights(
    config: ModelConfig, block_size: int, isa: InstructionSet
) -> None:
    weights = random_weights(config, torch.bfloat16)
    num_blocks, _ = pools(block_size)
    reference = ReferenceBackend(cast(weights, torch.float32), MAX_MODEL_LEN, block_size)
    reference.allocate_kv(num_blocks)
    wanted = run_steps(reference, block_size, all_logits=True)
    actual = run_steps(native(weights, block_size, num_blocks, isa=isa), block_size, all_logits=True)
    # The stated tolerance, in units of the logits' spread: 0.5 % in the mean, 4 % at most.
    errors = (actual - wanted).abs() / wanted.std()
    assert errors.max().item() < 0.04
    assert errors.mean().item() < 0.005


def test_logits_of_last_rows_equal_those_of_all_rows() -> None:
    config, block_size = CONFIGS[2]
    weights = random_weights(config, torch.float32)
    num_blocks, _ = pools(block_size)
    every = run_steps(native(weights, block_size, num_blocks), block_size, all_logits=True)
    last = run_steps(native(weights, block_size, num_blocks), block_size, all_logits=False)
    rows = [479, 499, 502, 503, 519, 520, 529, 530, 531]
    assert torch.equal(last, every[rows])


def test_chunk_without_logits_still_writes_the_cache() -> None:
    config, block_size = CONFIGS[2]
    weights = random_weights(config, torch.float32)
    tokens, blocks = random_tokens(40), [3, 1, 2]
    whole = chunked_logits(native(weights, block_size, 4), tokens, [40], blocks, block_size)
    backend = native(weights, block_size, 4)
    first = forward_batch([(tokens[:30], 0, blocks)], block_size)
    empty = backend.forward(replace(first, logits_indices=torch.empty(0, dtype=torch.int64)))
    assert empty.shape == (0, config.vocab_size)
    rest = backend.forward(forward_batch([(tokens[30:], 30, blocks)], block_size))
    assert torch.equal(rest, whole[30:])


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_the_same_bits_alone_batched_chunked_and_on_more_threads(
    dtype: torch.dtype, quantization: str
) -> None:
    config, block_size = CONFIGS[2]
    weights = random_weights(config, dtype)
    tokens = random_tokens(420)
    num_blocks = 60
    blocks, other = list(range(1, 29)), list(range(29, 60))
    options = {"quantization": quantization}
    alone = chunked_logits(native(weights, 16, num_blocks, **options), tokens, [420], blocks, 16)
    for chunks in ([1, 7, 100, 12, 300], [256, 164]):
        backend = native(weights, 16, num_blocks, num_threads=1, **options)
        assert torch.equal(chunked_logits(backend, tokens, chunks, blocks, 16), alone)
    backend = native(weights, 16, num_blocks, num_threads=3, **options)
    neighbour = random_tokens(470, seed=9)
    batch = forward_batch([(neighbour, 0, other), (tokens, 0, blocks)], block_size)
    assert torch.equal(backend.forward(batch)[470:], alone)


def test_buffers_that_grow_and_buffers_with_room_give_the_same_bits() -> None:
    config, block_size = CONFIGS[2]
    weights = random_weights(config, torch.bfloat16)
    num_blocks, _ = pools(block_size)
    grown, roomy = (
        run_steps(native(weights, block_size, num_blocks, max_num_tokens=n), block_size, all_logits=True)
        for n in (0, 1000)
    )
    assert torch.equal(grown, roomy)


def test_times_of_stages_tell_one_forward() -> None:
    config, block_size = CONFIGS[2]
    backend = native(random_weights(config, torch.float32), block_size, 40)
    batch = forward_batch([(random_tokens(100), 0, list(range(1, 30)))], block_size, False)
    backend.forward(batch)
    assert backend.stage_times() == []
    backend.time_stages()
    begin = time.monotonic_ns()
    backend.forward(batch)
    end = time.monotonic_ns()
    names, ended, waited = zip(*backend.stage_times(), strict=True)
    layer = ("norm", "qkv", "rope", "attention", "o", "norm", "gate_up", "down")
    last = (
        "norm",
        "qkv",
        "rope",
        "attention",
        "keep rows",
        "o",
        "gate_up",
        "down",
        "head",
    )  # one row is left
    assert names == ("embed", *layer * (config.num_layers - 1), *last)
    assert [begin, *sorted(ended), end] == [begin, *ended, end]
    assert min(waited) >= 0


def test_int8_stays_near_the_float_model() -> None:
    config, block_size = CONFIGS[2]
    weights = random_weights(config, torch.float32)
    num_blocks, _ = pools(block_size)
    exact = run_steps(native(weights, block_size, num_blocks), block_size, all_logits=True)
    int8 = run_steps(
        native(weights, block_size, num_blocks, quantization="int8"), block_size, all_logits=True
    )
    errors = (int8 - exact).abs() / exact.std()
    assert 1e-4 < errors.mean().item() < 0.02
    assert (int8.argmax(-1) == exact.argmax(-1)).float().mean().item() > 0.9


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", torch.tensor([101]), "token id"),
        ("input_ids", torch.tensor([-1]), "token id"),
        ("positions", torch.tensor([MAX_MODEL_LEN]), "position"),
        ("slot_mapping", torch.tensor([64]), "slot"),
        ("seq_lens", torch.tensor([0], dtype=torch.int32), "disagree"),
        ("block_table", torch.tensor([[9]], dtype=torch.int32), "block id"),
        ("logits_indices", torch.tensor([1]), "logits index"),
    ],
)
def test_an_index_out_of_range_is_refused_before_anything_is_written(
    field: str, value: torch.Tensor, message: str
) -> None:
    weights = random_weights(CONFIGS[2][0], torch.float32)
    backend = native(weights, 16, 4)
    good = forward_batch([([7], 0, [2])], 16)
    with pytest.raises(ValueError, match=message):
        backend.forward(replace(good, **{field: value}))
    assert torch.isfinite(backend.forward(good)).all()


def test_wrong_dtypes_are_refused() -> None:
    weights = random_weights(CONFIGS[2][0], torch.float32)
    batch = forward_batch([([7], 0, [2])], 16)
    with pytest.raises(ValueError, match="int64"):
        native(weights, 16, 4).forward(replace(batch, input_ids=batch.input_ids.int()))
    with pytest.raises(InvalidInputError, match="dtype"):
        native(cast(weights, torch.float64), 16, 4)
    with pytest.raises(InvalidInputError, match="quantization"):
        native(weights, 16, 4, quantization="int3")


def test_forward_without_a_cache_says_so() -> None:
    backend = CpuBackend(random_weights(CONFIGS[2][0], torch.float32), MAX_MODEL_LEN, 16)
    with pytest.raises(ValueError, match="allocate_kv"):
        backend.forward(forward_batch([([7], 0, [2])], 16))


@pytest.mark.parametrize(("block_size", "wanted"), [(16, 1.0), (32, 1.0), (24, 32 / 24)])
def test_kv_bytes_per_block(block_size: int, wanted: float) -> None:
    config = tiny_config(64, 9, 3)
    backend = CpuBackend(random_weights(config, torch.bfloat16), MAX_MODEL_LEN, block_size)
    assert backend.kv_bytes_per_block() == wanted * block_size * config.kv_bytes_per_token(2)
