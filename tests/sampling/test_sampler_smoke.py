"""The sampler's interface, on small vocabularies."""

from __future__ import annotations

import torch

from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams


def test_greedy_takes_the_first_of_the_best() -> None:
    sampler = Sampler(vocab_size=5, max_rows=2)
    sampler.add_row(0, SamplingParams(temperature=0.0), [1], [], [])
    sampler.add_row(1, SamplingParams(temperature=0.0), [1], [], [])
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0, 2.0], [9.0, 3.0, 3.0, 1.0, 2.0]])
    assert sampler.sample(logits, [1, 0]).token_ids == [1, 0]
