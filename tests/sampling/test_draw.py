"""Inverse-CDF drawing and the cuts of min_p, top_k and top_p, against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.sampling import draw
from engine.sampling.draw import draw_full, draw_truncated, kept_tokens, pick
from engine.sampling_params import SamplingParams
from tests.sampling.reference import kept_probabilities

WEIGHTS = st.lists(st.integers(0, 5), min_size=1, max_size=200).filter(any)
U = st.floats(0.0, 1.0, exclude_max=True)
LAST_U = np.nextafter(1.0, 0.0)


def by_definition(weights: np.ndarray, u: float) -> int:
    """The first index whose running sum exceeds u times the total."""
    target, running = u * weights.sum(), 0.0
    for index, weight in enumerate(weights):
        running += weight
        if weight and running > target:
            return index
    return int(np.flatnonzero(weights)[-1])


@given(WEIGHTS, U)
def test_pick_and_draw_full_follow_the_definition(weights: list[int], u: float) -> None:
    # Small integers: every sum is exact, so both must agree to the last bit.
    expected = by_definition(np.array(weights, dtype=np.float64), u)
    assert (
        pick(torch.tensor([weights], dtype=torch.float64), torch.tensor([u], dtype=torch.float64)).item()
        == expected
    )
    assert (
        draw_full(torch.tensor([weights], dtype=torch.float32), torch.tensor([u], dtype=torch.float64)).item()
        == expected
    )


@given(
    st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=300).filter(any),
    st.sampled_from([0.0, LAST_U]),
)
def test_an_impossible_token_is_never_drawn(weights: list[float], u: float) -> None:
    token = draw_full(
        torch.tensor([weights], dtype=torch.float32), torch.tensor([u], dtype=torch.float64)
    ).item()
    assert weights[token] > 0


def test_frequencies_are_the_probabilities() -> None:
    probs = torch.softmax(torch.linspace(-3, 3, 97), dim=0)
    count = 50_000
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    drawn = torch.bincount(draw_full(probs.repeat(count, 1), u), minlength=97).double() / count
    assert (drawn - probs.double()).abs().max() < 1.5 / count  # stratified u: counts are exact up to rounding


LOGITS = st.lists(st.integers(-8, 8), min_size=1, max_size=60)  # few distinct values: many ties
CUTS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 70),
    # no round numbers: with tied logits the mass could equal them exactly, and then rounding decides
    top_p=st.sampled_from([1e-9, 0.1234567, 0.5432101, 0.9123456, 0.9991234, 1.0]),
    min_p=st.sampled_from([0.0, 0.0123456, 0.3123456, 1.0]),
)


@given(LOGITS, CUTS, st.lists(U, min_size=8, max_size=8))
def test_cuts_follow_the_definition(logits: list[int], params: SamplingParams, u: list[float]) -> None:
    vocab, rows = len(logits), len(u)
    expected = kept_probabilities([float(logit) for logit in logits], params)
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float32) / params.temperature, dim=0)
    ids, kept = kept_tokens(probs.numpy(), params.top_k or vocab, params.top_p, params.min_p)
    assert (np.diff(ids) > 0).all()
    row = np.zeros(vocab)
    row[ids] = kept
    possible = expected > 1e-37  # what underflows in float32 can't be drawn
    assert (row > 0)[possible].all()
    assert not row[expected == 0].any()
    assert row / row.sum() == pytest.approx(expected, abs=1e-6)

    for candidates in (1, 5, 17, 256):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draw, "CANDIDATES", candidates)
            tokens = draw_truncated(
                probs.repeat(rows, 1),
                torch.tensor(u, dtype=torch.float64),
                torch.full((rows,), params.top_k or vocab),
                torch.full((rows,), params.top_p, dtype=torch.float64),
                torch.full((rows,), params.min_p, dtype=torch.float64),
            )
        weights = torch.from_numpy(row).repeat(rows, 1)
        assert tokens.tolist() == pick(weights, torch.tensor(u, dtype=torch.float64)).tolist()


@given(st.integers(0, 2**32), st.sampled_from([0.3123, 0.9123, 0.99123]), st.integers(0, 400))
def test_the_number_of_candidates_looked_at_changes_nothing(seed: int, top_p: float, top_k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, vocab = 4, 500
    probs = torch.softmax(torch.randn(rows, vocab, generator=generator).mul(4).round(), dim=1)
    u = torch.rand(rows, generator=generator, dtype=torch.float64)
    arguments = (
        u,
        torch.full((rows,), top_k or vocab),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.zeros(rows, dtype=torch.float64),
    )
    outcomes = []
    for candidates in (1, 8, 64, 256, 500):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draw, "CANDIDATES", candidates)
            outcomes.append(draw_truncated(probs, *arguments).tolist())
    assert outcomes == [outcomes[0]] * 5


def test_ties_at_the_cut_go_to_the_lower_id() -> None:
    probs = torch.full((3, 6), 1 / 6)
    u = torch.tensor([0.0, 0.5, LAST_U], dtype=torch.float64)
    off = torch.ones(3, dtype=torch.float64)
    tokens = draw_truncated(probs, u, torch.full((3,), 2), off, torch.zeros(3, dtype=torch.float64))
    assert tokens.tolist() == [0, 1, 1]


def test_a_real_sample_is_distributed_as_it_should_be() -> None:
    count, vocab = 30_000, 20
    params = SamplingParams(temperature=1.3, top_k=9, top_p=0.9)
    logits = torch.linspace(0, 3, vocab)
    probs = torch.softmax(logits / 1.3, dim=0).repeat(count, 1)
    u = torch.rand(count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tokens = draw_truncated(
        probs,
        u,
        torch.full((count,), 9),
        torch.full((count,), 0.9, dtype=torch.float64),
        torch.zeros(count).double(),
    )
    expected = kept_probabilities(logits.tolist(), params)
    observed = torch.bincount(tokens, minlength=vocab).numpy()
    assert observed[expected == 0].sum() == 0
    assert stats.chisquare(observed[expected > 0], expected[expected > 0] * count).pvalue > 0.001


@given(
    st.integers(0, 2**32), st.sampled_from([0.5, 0.9, 0.95, 0.999999, 1 - 1e-12]), st.sampled_from([0, 9000])
)
@settings(max_examples=30)
def test_wide_rows_keep_what_a_full_sort_keeps(seed: int, top_p: float, top_k: int) -> None:
    """A vocabulary of real size, logits flat enough that thousands of tokens are kept, some of them equal."""
    vocab = 20_000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)).mul(200).round() / 100
    probs = torch.softmax(logits, dim=0).numpy()
    order = np.argsort(-probs, kind="stable")[: top_k or vocab]
    before = np.concatenate([[0.0], probs[order].astype(np.float64).cumsum()])
    mass = before[-1] if top_k else 1.0
    expected = order[before[:-1] < top_p * mass]
    ids, kept = kept_tokens(probs, top_k or vocab, top_p, 0.0)
    assert ids.tolist() == sorted(expected.tolist())
    assert kept.tolist() == probs[ids].tolist()


def test_probabilities_that_sum_to_less_than_top_p_are_all_kept() -> None:
    """Rounding of the softmax may do that for top_p close to 1."""
    probs = np.full(1000, 0.0009, dtype=np.float32)
    assert len(kept_tokens(probs, 1000, 0.95, 0.0)[0]) == 1000
