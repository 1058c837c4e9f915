"""Sampling helpers against the engine's sampler, which has oracles of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.triton.sampling import apply_penalties, top_k_top_p_threshold
from engine.sampling.draw import kept_tokens
from engine.sampling.penalties import Penalties
from engine.sampling.penalties import apply_penalties as reference_penalties
from tests.kernels_triton.cases import DEVICE


def cut(
    probs: torch.Tensor, top_k: list[int], top_p: list[float], min_p: list[float]
) -> tuple[torch.Tensor, ...]:
    rows = len(probs)
    threshold, mass = (torch.full((rows,), float("nan"), device=DEVICE) for _ in range(2))
    top_k_top_p_threshold(
        probs.to(DEVICE),
        torch.tensor(top_k, dtype=torch.int32, device=DEVICE),
        torch.tensor(top_p, device=DEVICE),
        torch.tensor(min_p, device=DEVICE),
        threshold,
        mass,
    )
    return threshold.cpu(), mass.cpu()


@settings(max_examples=6, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 7, 40, 10_000]),
            st.sampled_from([1.0, 0.95, 0.5, 1e-6]),
            st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    vocab=st.sampled_from([2, 33, 96]),
    sharpness=st.sampled_from([0.1, 1.0, 6.0]),
    seed=st.integers(0, 1000),
)
def test_the_cut_keeps_what_the_sampler_keeps(
    rows: list[tuple[int, float, float]], vocab: int, sharpness: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(torch.randn(len(rows), vocab, generator=generator) * sharpness, dim=-1)
    threshold, mass = cut(probs, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])
    for line, level, kept_mass, (top_k, top_p, min_p) in zip(probs, threshold, mass, rows, strict=True):
        kept = np.flatnonzero(line.numpy() >= level.numpy())
        # The sampler's sums are float64: a share within rounding of the cut may fall on either side.
        tops = {top_p} if top_p in (1.0, 1e-6) else {top_p * (1 - 1e-6), top_p, top_p * (1 + 1e-6)}
        wanted = [
            kept_tokens(line.numpy(), min(top_k, vocab), p, np.float32(min_p))[0].tolist() for p in tops
        ]
        assert kept.tolist() in wanted
        assert kept_mass.item() == pytest.approx(line[kept].double().sum().item(), rel=1e-5)


def test_tied_tokens_at_the_cut_stay_together() -> None:
    probs = torch.tensor([[0.3, 0.2, 0.2, 0.2, 0.1]])
    threshold, mass = cut(probs, [2], [1.0], [0.0])
    assert threshold.item() == pytest.approx(0.2)
    assert mass.item() == pytest.approx(0.9)


def test_zeros_are_never_needed() -> None:
    probs = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    threshold, mass = cut(probs, [3, 1], [0.9, 1.0], [0.0, 0.0])
    assert threshold.tolist() == [1.0, 0.5]
    assert mass.tolist() == [1.0, 1.0]


def test_penalties_are_the_samplers() -> None:
    vocab = 50
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(0)) * 3
    rows = [
        Penalties(1.3, 0.4, -0.2, [3, 4, 9], [4, 4, 11]),
        Penalties(1.0, 0.0, 1.5, [3], [49, 0, 0]),
        Penalties(0.7, 0.0, 0.0, [], []),
        Penalties(1.0, -0.5, 0.0, [7], list(range(40))),
    ]
    wanted = logits.clone()
    reference_penalties(wanted, list(enumerate(rows)))
    starts = np.cumsum([0, *[len(row.ids) for row in rows]])
    found = logits.clone().to(DEVICE)

    def each(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=torch.float32, device=DEVICE)

    apply_penalties(
        found,
        torch.from_numpy(starts.astype(np.int32)).to(DEVICE),
        torch.from_numpy(np.concatenate([row.ids for row in rows])).to(DEVICE),
        torch.from_numpy(np.concatenate([row.counts for row in rows])).to(DEVICE),
        each("repetition"),
        each("frequency"),
        each("presence"),
        max(len(row.ids) for row in rows),
    )
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6)
    assert not torch.equal(wanted, logits)
