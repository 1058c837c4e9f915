"""The whole backend against the float64 reference, with what a captured graph adds: padding rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from engine.errors import InvalidInputError
from engine.kernels.triton import backend as backend_module
from engine.kernels.triton.backend import TritonBackend
from engine.models.backend import ForwardBatch
from engine.models.dense import ReferenceBackend
from tests.helpers.forward import forward_batch
from tests.kernels_triton.cases import DEVICE
from tests.kernels_triton.models import random_weights, tiny_config

BLOCK, WIDTH = 4, 8
Step = list[tuple[int, int]]
"""Tokens known before and new tokens of each request."""


def batch_of(step: Step, pads: int = 0) -> ForwardBatch:
    """Request i owns blocks 1 + i·WIDTH …; ``pads`` rows as a graph of a larger batch has them."""
    parts = []
    for i, (known, new) in enumerate(step):
        tokens = [(31 * place + 7 * i) % 71 for place in range(known, known + new)]
        parts.append((tokens, known, list(range(1 + i * WIDTH, 1 + (i + 1) * WIDTH))))
    batch = forward_batch(parts, BLOCK, all_logits=False)
    starts = batch.query_start_loc
    return dataclasses.replace(
        batch,
        input_ids=F.pad(batch.input_ids, (0, pads)),
        positions=F.pad(batch.positions, (0, pads)),
        query_start_loc=torch.cat([starts, starts[-1] + torch.arange(1, pads + 1, dtype=torch.int32)]),
        seq_lens=F.pad(batch.seq_lens, (0, pads)),
        block_table=F.pad(batch.block_table, (0, 0, 0, pads)),
        slot_mapping=F.pad(batch.slot_mapping, (0, pads), value=-1),
    )


def on_device(batch: ForwardBatch) -> ForwardBatch:
    tensors = {
        field.name: value.to(DEVICE)
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor)
    }
    return dataclasses.replace(batch, **tensors)


def poisoned(backend: TritonBackend, num_blocks: int) -> TritonBackend:
    backend.allocate_kv(num_blocks)
    for cache in (*backend.key_caches, *backend.value_caches):
        cache.fill_(float("nan") if cache.dtype.is_floating_point else 0x7E)
    return backend


STEPS: list[Step] = [[(0, 5), (0, 1), (0, 3)], [(5, 1), (1, 1), (3, 1)], [(6, 1), (2, 4), (4, 2)]]
"""Prompts; a decode step; a mixed one."""


@pytest.mark.parametrize(
    ("heads", "head_size", "features"),
    [((4, 2), 12, {}), ((3, 1), 16, {"qkv_bias": True}), ((2, 2), 10, {"qk_norm": True})],
)
def test_logits_are_the_references(heads: tuple[int, int], head_size: int, features: dict[str, bool]) -> None:
    config = tiny_config(head_size, *heads, **features)
    ours = poisoned(TritonBackend(random_weights(config, torch.float32), 64, BLOCK, device=DEVICE), 25)
    oracle = ReferenceBackend(random_weights(config, torch.float64), 64, BLOCK)
    oracle.allocate_kv(25)
    for step in STEPS:
        batch = batch_of(step)
        found, wanted = ours.forward(on_device(batch)), oracle.forward(batch)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.cpu().double(), wanted.double(), rtol=2e-5, atol=2e-5)


def test_padding_rows_change_nothing() -> None:
    config = tiny_config(8, 2, 1)
    backends = [
        poisoned(TritonBackend(random_weights(config, torch.float32), 64, BLOCK, device=DEVICE), 20)
        for _ in range(2)
    ]
    for step in ([(0, 5), (0, 3)], [(5, 1), (3, 1)]):
        decode = step[0][1] == 1
        plain = backends[0].forward(on_device(batch_of(step)))
        padded = backends[1].forward(on_device(batch_of(step, pads=2 if decode else 0)))
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)
    caches = [[*backend.key_caches, *backend.value_caches] for backend in backends]
    owned = torch.arange(1, 1 + 2 * WIDTH)
    for plain, padded in zip(*caches, strict=True):
        # Bit for bit outside the requests' own blocks, the null block included: the poison is still there.
        others = torch.ones(20, dtype=torch.bool)
        others[owned] = False
        assert padded[others.to(DEVICE)].isnan().all()
        assert torch.equal(padded.isnan(), plain.isnan())


def test_fp8_cache_is_near_and_half_the_size() -> None:
    config = tiny_config(16, 2, 1)
    weights = random_weights(config, torch.float16)
    exact = poisoned(TritonBackend(weights, 64, BLOCK, device=DEVICE), 25)
    coarse = poisoned(TritonBackend(weights, 64, BLOCK, device=DEVICE, kv_cache_dtype="fp8"), 25)
    assert coarse.kv_bytes_per_block() * 2 == exact.kv_bytes_per_block() == BLOCK * 2 * 2 * 16 * 2
    batch = on_device(batch_of(STEPS[0]))
    near, true = coarse.forward(batch), exact.forward(batch)
    difference = (near - true).abs().max().item()
    # e4m3 has steps of 1/16 at worst; random weights of two layers carry that to the logits unmagnified.
    assert 0 < difference < 0.25 * true.abs().max().item()


def test_sliding_window_forgets_old_tokens() -> None:
    config = tiny_config(8, 2, 1)
    weights = random_weights(config, torch.float32)
    whole, narrow = (
        poisoned(TritonBackend(weights, 64, BLOCK, device=DEVICE, sliding_window=window), 12)
        for window in (None, 3)
    )
    batch = on_device(batch_of([(0, 3)]))
    torch.testing.assert_close(narrow.forward(batch), whole.forward(batch), rtol=1e-6, atol=1e-6)
    batch = on_device(batch_of([(3, 1)]))
    # Two layers see 2·(3 − 1) tokens back, the last of them still: but not with the weights of before.
    assert (narrow.forward(batch) - whole.forward(batch)).abs().max().item() > 1e-3


def test_what_the_kernels_do_not_have_is_refused() -> None:
    def make(head_size: int = 8, dtype: torch.dtype = torch.float32, **settings: str) -> TritonBackend:
        return TritonBackend(
            random_weights(tiny_config(head_size, 2, 1), dtype), 64, BLOCK, **{"device": DEVICE, **settings}
        )

    with pytest.raises(InvalidInputError, match=r"dtype='float64': float32, bfloat16 or float16"):
        make(dtype=torch.float64)
    with pytest.raises(InvalidInputError, match=r"head_size=258: an even number up to 256"):
        make(head_size=258)
    with pytest.raises(InvalidInputError, match=r"kv_cache_dtype='fp4': auto or fp8"):
        make(kv_cache_dtype="fp4")


def test_without_a_gpu_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    weights = random_weights(tiny_config(8, 2, 1), torch.float32)
    for device in ("cpu", "cuda"):
        with pytest.raises(InvalidInputError, match=f"device='{device}': a CUDA device"):
            TritonBackend(weights, 64, BLOCK, device=device)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 130])
def test_the_workspace_has_room_for_every_batch(max_num_seqs: int) -> None:
    config = tiny_config(8, 2, 1)
    made = TritonBackend(
        random_weights(config, torch.float32), 64, BLOCK, device=DEVICE, max_num_seqs=max_num_seqs
    )
    room = made._workspace.lse.numel()
    for rows in range(1, max_num_seqs + 1):
        assert made._splits(rows, 1 << 20) * rows * config.num_heads <= room
