"""No parameters crash the sampler, and no neighbour changes a row: what a row draws in a batch it draws
alone.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.frontend.validate import RequestBounds, validate_params
from engine.messages import TokenLogprobs
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams

VOCAB = 40
EOS = [2]
BOUNDS = RequestBounds.of(
    EngineConfig(max_logprobs=-1), vocab_size=VOCAB, max_model_len=1000, num_kv_blocks=1000, block_size=16
)
IDS = st.integers(0, VOCAB - 1)
TOKENS = st.lists(IDS, max_size=8)

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-12, 1e-4, 0.01, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1e-9, 0.2, 0.9, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 3, VOCAB, VOCAB + 9]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 1.5]),
    repetition_penalty=st.sampled_from([1.0, 1e-30, 0.5, 1.7, 1e30]),
    seed=st.integers(-(2**63), 2**63 - 1),
    stop_token_ids=TOKENS.map(tuple),
    bad_words_token_ids=st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=5).map(tuple),
    logit_bias=st.dictionaries(IDS, st.floats(-1e6, 1e6), max_size=4),
    allowed_token_ids=TOKENS.map(tuple),
    max_tokens=st.none(),
    min_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0, 2, -1]),
)
ROWS = st.lists(st.tuples(PARAMS, st.lists(IDS, min_size=1, max_size=8), TOKENS), min_size=1, max_size=6)
STEPS = 4


def run_alone(
    params: SamplingParams, prompt: list[int], output: list[int], steps: list[torch.Tensor]
) -> list[tuple[int, TokenLogprobs | None]]:
    sampler = Sampler(VOCAB, 1)
    sampler.add_row(0, params, prompt, output, EOS)
    drawn = []
    for logits in steps:
        batch = sampler.sample(logits.clone().unsqueeze(0), [0])
        drawn.append((batch.token_ids[0], batch.logprobs[0]))
    return drawn


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(0, 2**31), st.sampled_from([0.1, 3.0, 100.0]), st.data())
def test_a_row_draws_what_it_draws_alone(
    rows: list[tuple[SamplingParams, list[int], list[int]]], seed: int, scale: float, data: st.DataObject
) -> None:
    rows = [(validate_params(params, BOUNDS), prompt, output) for params, prompt, output in rows]
    logits = torch.randn(STEPS, len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * scale
    expected = [run_alone(*row, list(logits[:, i])) for i, row in enumerate(rows)]

    sampler = Sampler(VOCAB, 8)
    places = dict(enumerate(data.draw(st.permutations(range(8)))[: len(rows)]))
    for i, row in enumerate(rows):
        sampler.add_row(places[i], *row, EOS)
    done = dict.fromkeys(places, 0)
    while pending := [i for i in places if done[i] < STEPS]:
        # not every row samples in every step: some are in the middle of their prompt
        order = data.draw(st.lists(st.sampled_from(pending), min_size=1, unique=True))
        lines = torch.stack([logits[done[i], i] for i in order])
        batch = sampler.sample(lines, [places[i] for i in order])
        for i, token, logprobs in zip(order, batch.token_ids, batch.logprobs, strict=True):
            assert (token, logprobs) == expected[i][done[i]]
            done[i] += 1
        if len(places) > 1 and data.draw(st.booleans()):  # a neighbour leaves, the last row takes its place
            gone, last = data.draw(st.sampled_from(sorted(places))), max(places)
            sampler.remove_row(places[gone])
            if gone != last:
                sampler.move_row(places[last], places[gone])
                places[last] = places[gone]
            del places[gone]


def test_a_large_batch_of_a_large_vocabulary_draws_row_by_row_what_each_draws_alone() -> None:
    """Shapes at which torch splits work over threads and vectors."""
    vocab, rows = 50_257, 24
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3
    variants = (
        {},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"top_k": 300, "top_p": 0.99},
        {"temperature": 0.0},
    )
    params = [SamplingParams(**{"seed": i, **variants[i % len(variants)]}) for i in range(rows)]  # type: ignore[arg-type]
    together = Sampler(vocab, rows)
    for i, row_params in enumerate(params):
        together.add_row(i, row_params, [1], [], [])
    tokens = together.sample(logits.clone(), list(range(rows))).token_ids
    for i, row_params in enumerate(params):
        alone = Sampler(vocab, 1)
        alone.add_row(0, row_params, [1], [], [])
        assert alone.sample(logits[i : i + 1].clone(), [0]).token_ids == [tokens[i]]
