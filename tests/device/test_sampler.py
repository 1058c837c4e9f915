"""Tokens drawn on the device are those of the host's sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.executor.device.inputs import StepShape, write_sampling
from engine.executor.device.sampler import sample_on_device
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 200
CASES = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_k": {"temperature": 0.8, "top_k": 5},
    "top_p": {"temperature": 1.2, "top_p": 0.7},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    "all": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
}


def both(rows: list[SamplingParams], logits: torch.Tensor) -> tuple[list[int], list[int]]:
    """(device's, host's) tokens for one line of ``logits`` a row."""
    host = Sampler(VOCAB_SIZE, len(rows))
    for row, params in enumerate(rows):
        host.add_row(row, params, [1, 2], [], [])
    state, index = host.rows, np.arange(len(rows))
    layout = StepShape(1, 1, 1, len(rows), 0).layout
    block = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    write_sampling(layout.on_host(block.numpy()), state, index)
    drawn = sample_on_device(
        logits.clone(),
        layout.on_device(block),
        all_greedy=bool(state.greedy.all()),
        any_cut=bool(state.truncated.any() or state.min_p.any()),
    )
    return drawn.tolist(), host.sample(logits.clone(), index.tolist()).token_ids


@pytest.mark.parametrize("case", [*CASES, "mixed"])
def test_tokens_are_the_hosts(case: str) -> None:
    random = torch.Generator().manual_seed(9)
    for first_seed in range(2):
        fields = [CASES[case]] * 3 if case != "mixed" else [*CASES.values()]
        rows = [SamplingParams(seed=50 * first_seed + i, **f) for i, f in enumerate(fields)]
        device, host = both(rows, 3 * torch.randn(len(rows), VOCAB_SIZE, generator=random))
        assert device == host


def test_broken_rows_take_their_best_token_and_leave_the_others_alone() -> None:
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    rows = [SamplingParams(seed=i, top_p=0.9) for i in range(4)]
    whole, _ = both(rows, logits)
    logits[1, 7], logits[2] = float("nan"), float("-inf")
    logits[1, 9] = 50.0
    device, host = both(rows, logits)
    assert device == host
    assert device[1] == 9
    assert [device[0], device[3]] == [whole[0], whole[3]]
