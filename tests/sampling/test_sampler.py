"""The sampler as the executor uses it: order of processing, seeds, rows that come, move and go, broken
logits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.sampling.reference import kept_probabilities, processed_logits

VOCAB = 64
NAN, INF = math.nan, math.inf


def logits_of(seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def sample_one(
    params: SamplingParams,
    logits: torch.Tensor,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    eos: list[int] | None = None,
) -> int:
    sampler = Sampler(logits.shape[1], 1)
    sampler.add_row(0, params, prompt or [1], output or [], eos or [])
    return sampler.sample(logits.clone(), [0]).token_ids[0]


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **fields)  # type: ignore[arg-type]


def test_greedy_takes_the_first_of_the_best() -> None:
    sampler = Sampler(vocab_size=5, max_rows=2)
    sampler.add_row(0, greedy(), [1], [], [])
    sampler.add_row(1, greedy(), [1], [], [])
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0, 2.0], [9.0, 3.0, 3.0, 1.0, 2.0]])
    assert sampler.sample(logits, [1, 0]).token_ids == [1, 0]


@pytest.mark.parametrize("first", [0, 15, 16, 1000, 49_150])
def test_greedy_takes_the_first_of_the_best_of_a_whole_vocabulary(first: int) -> None:
    logits = torch.full((1, 49_152), -INF)
    logits[0, first:] = 2.5
    assert sample_one(greedy(), logits) == first
    logits[0, 49_151] = 2.6
    assert sample_one(greedy(), logits) == 49_151


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = logits_of(1)
    assert sample_one(SamplingParams(temperature=temperature, seed=5), logits) == logits.argmax().item()


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-3, 0.01])
def test_low_temperatures_are_raised_to_a_hundredth(temperature: float) -> None:
    logits = logits_of(2) * 1e4  # far beyond what float16 could divide
    tokens = {sample_one(SamplingParams(temperature=temperature, seed=s), logits) for s in range(20)}
    assert tokens == {logits.argmax().item()}
    close = torch.tensor([[0.0, 0.005]])
    drawn = [sample_one(SamplingParams(temperature=temperature, seed=s), close) for s in range(300)]
    assert 0.5 < np.mean(drawn) < 0.75  # softmax(0, 0.5) = 0.62: the temperature in force is 0.01


def test_top_p_close_to_zero_and_top_k_one_are_argmax() -> None:
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0]])
    for seed in range(20):
        assert sample_one(SamplingParams(top_p=1e-9, seed=seed), logits) == 1
        assert sample_one(SamplingParams(top_k=1, seed=seed), logits) == 1
        assert sample_one(SamplingParams(min_p=1.0, seed=seed), torch.tensor([[1.0, 5.0, 4.0]])) == 1


def test_masks_come_before_penalties_and_penalties_before_the_greedy_choice() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    assert sample_one(greedy(allowed_token_ids=(2, 3)), logits) == 2
    assert sample_one(greedy(bad_words_token_ids=((0,),)), logits) == 1
    assert sample_one(greedy(logit_bias={3: 10.0}), logits) == 3
    assert sample_one(greedy(repetition_penalty=2.0), logits, prompt=[0]) == 1
    # Bias is penalised too: (2 + 10) / 2 = 6 still wins over 5, (2 + 7) / 2 = 4.5 doesn't.
    assert sample_one(greedy(repetition_penalty=2.0, logit_bias={3: 10.0}), logits, prompt=[3]) == 3
    assert sample_one(greedy(repetition_penalty=2.0, logit_bias={3: 7.0}), logits, prompt=[3]) == 0


def test_penalties_see_what_they_should() -> None:
    logits = torch.tensor([[5.0, 4.5, -1.0, 0.0]])
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert sample_one(greedy(**penalty), logits, prompt=[0, 0, 0]) == 0, "the prompt doesn't count"
        assert sample_one(greedy(**penalty), logits, output=[0]) == 1
    # frequency grows with the count, presence doesn't: 5 - 2·0.3 < 4.5 <= 5 - 0.3
    assert sample_one(greedy(frequency_penalty=0.3), logits, output=[0, 0]) == 1
    assert sample_one(greedy(presence_penalty=0.3), logits, output=[0, 0]) == 0
    # a negative logit is multiplied
    assert sample_one(greedy(repetition_penalty=2.0), torch.tensor([[-1.0, -1.5]]), prompt=[0]) == 1


def test_the_first_token_is_penalised_and_sampled_tokens_count() -> None:
    sampler = Sampler(4, 1)
    sampler.add_row(0, greedy(presence_penalty=2.0), [1], [], [])
    logits = torch.tensor([[5.0, 4.0, 3.5, 0.0]])
    assert [sampler.sample(logits.clone(), [0]).token_ids[0] for _ in range(4)] == [0, 1, 2, 0]


def test_bad_phrases_are_broken_at_their_last_token_and_only_there() -> None:
    phrase = greedy(bad_words_token_ids=((0, 1, 2),))
    logits = torch.tensor([[0.0, 0.0, 5.0, 1.0]])
    assert sample_one(phrase, logits, output=[0, 1]) == 3
    assert sample_one(phrase, logits, output=[1]) == 2
    assert sample_one(phrase, logits, output=[0, 1, 0]) == 2
    assert sample_one(phrase, logits, prompt=[0, 1]) == 2, "only generated text counts"


def test_min_tokens_masks_every_stop_token_until_it_is_reached() -> None:
    sampler = Sampler(6, 1)
    params = greedy(min_tokens=4, stop_token_ids=(5,), logit_bias={2: 100.0, 4: 90.0, 5: 80.0})
    sampler.add_row(0, params, [1], [], [2, 4])
    tokens = [sampler.sample(torch.zeros(1, 6), [0]).token_ids[0] for _ in range(5)]
    assert not {2, 4, 5} & set(tokens[:4])
    assert tokens[4] == 2


def test_ignore_eos_makes_eos_an_ordinary_token() -> None:
    params = greedy(min_tokens=4, ignore_eos=True, logit_bias={2: 100.0})
    assert sample_one(params, torch.zeros(1, 6), eos=[2]) == 2


def test_masks_that_leave_nothing_fall_back_to_the_allowed_tokens() -> None:
    logits = logits_of(3)
    assert sample_one(greedy(allowed_token_ids=(5,), bad_words_token_ids=((5,),)), logits) == 5
    assert sample_one(greedy(allowed_token_ids=(7,), min_tokens=3), logits, eos=[7]) == 7
    everything = tuple((token,) for token in range(VOCAB))
    assert sample_one(greedy(bad_words_token_ids=everything), logits) == logits.argmax().item()
    assert (
        sample_one(SamplingParams(allowed_token_ids=(5,), bad_words_token_ids=((5,),), seed=1), logits) == 5
    )


@pytest.mark.parametrize(
    "row", [[NAN] * 4, [-INF] * 4, [INF, 1.0, NAN, 0.0], [1.0, NAN, 2.0, 0.0], [INF] * 4]
)
@pytest.mark.parametrize("extra", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"logprobs": 2}])
def test_broken_logits_give_some_token_and_leave_neighbours_alone(
    row: list[float], extra: dict[str, float]
) -> None:
    healthy = [0.0, 3.0, 2.0, 1.0]
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=4, **extra)  # type: ignore[arg-type]
        sampler = Sampler(4, 2)
        for index in range(2):
            sampler.add_row(index, params, [1], [], [])
        batch = sampler.sample(torch.tensor([row, healthy]), [0, 1])
        assert batch.token_ids[0] in range(4)
        assert batch.token_ids[1] == sample_one(params, torch.tensor([healthy]))


def test_broken_logits_respect_the_allowed_tokens() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(
            temperature=temperature, seed=4, allowed_token_ids=(2, 3), bad_words_token_ids=((2,),)
        )
        assert sample_one(params, torch.full((1, 4), NAN)) == 3


def test_a_resumed_row_goes_on_as_if_it_had_never_left() -> None:
    params = SamplingParams(
        temperature=0.9, seed=11, repetition_penalty=1.3, bad_words_token_ids=((1, 2),), min_tokens=6
    )
    steady = Sampler(VOCAB, 2)
    steady.add_row(0, params, [3, 4], [], [9])
    expected = [steady.sample(logits_of(step), [0]).token_ids[0] for step in range(10)]
    for cut in range(10):
        resumed = Sampler(VOCAB, 2)
        resumed.add_row(1, params, [3, 4], expected[:cut], [9])
        assert [resumed.sample(logits_of(step), [1]).token_ids[0] for step in range(cut, 10)] == expected[
            cut:
        ]


def test_a_row_that_does_not_sample_stays_where_it_is() -> None:
    """As a row in the middle of its prompt does while others decode."""
    params = SamplingParams(seed=3)
    sampler = Sampler(50_000, 2)
    for row in range(2):
        sampler.add_row(row, params, [1], [], [])
    flat = torch.zeros(1, 50_000)
    first = [sampler.sample(flat.clone(), [0]).token_ids[0] for _ in range(4)]
    second = [sampler.sample(flat.clone(), [1]).token_ids[0] for _ in range(4)]
    assert first == second
    assert len(set(first)) == 4


def test_moved_and_removed_rows_leave_nothing_behind() -> None:
    sampler = Sampler(VOCAB, 3)
    biased, plain = greedy(logit_bias={7: 100.0}), greedy()
    sampler.add_row(0, biased, [1], [], [])
    sampler.add_row(2, plain, [1], [], [])
    sampler.move_row(2, 0)
    assert sampler.sample(logits_of(1), [0]).token_ids == [logits_of(1).argmax().item()]
    sampler.add_row(2, biased, [1], [], [])
    sampler.move_row(2, 2)
    assert sampler.sample(logits_of(1), [2]).token_ids == [7]
    sampler.remove_row(2)
    sampler.add_row(2, plain, [1], [], [])
    assert sampler.sample(logits_of(1), [2]).token_ids == [logits_of(1).argmax().item()]


def test_the_same_seed_at_another_position_or_another_seed_draws_anew() -> None:
    flat = torch.zeros(1, 50_000)
    at_positions = [sample_one(SamplingParams(seed=1), flat, prompt=[0] * n) for n in range(1, 30)]
    of_seeds = [sample_one(SamplingParams(seed=s), flat) for s in range(29)]
    assert len(set(at_positions)) == len(set(of_seeds)) == 29
    assert sample_one(SamplingParams(seed=1), flat, prompt=[5, 6]) == sample_one(
        SamplingParams(seed=1), flat, [5], [6]
    )


def test_sampled_frequencies_match_the_reference() -> None:
    """The whole chain, many seeds in one batch, against the float64 oracle."""
    params = SamplingParams(
        temperature=0.8, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.5,
        presence_penalty=-0.3, logit_bias={4: 2.0}, bad_words_token_ids=((3,), (8, 9)),
    )  # fmt: skip
    prompt, output, logits, rows = [1, 5, 5], [8, 2, 2, 8], logits_of(8, 32), 8_000
    sampler = Sampler(32, rows)
    for row in range(rows):
        fields = {name: getattr(params, name) for name in params.__struct_fields__}
        sampler.add_row(row, SamplingParams(**{**fields, "seed": row}), prompt, output, [])
    tokens = sampler.sample(logits.repeat(rows, 1), list(range(rows))).token_ids
    expected = kept_probabilities(processed_logits(logits[0].tolist(), params, prompt, output), params)
    observed = np.bincount(tokens, minlength=32) / rows
    assert observed[expected == 0].sum() == 0
    assert np.abs(observed - expected).max() < 4 * 0.5 / math.sqrt(rows)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = logits_of(5)
    raw = torch.log_softmax(logits.double(), dim=1)[0]
    sampler = Sampler(VOCAB, 3)
    for row, count in enumerate((0, 3, -1)):
        params = SamplingParams(
            temperature=0.0, logprobs=count, logit_bias={9: 100.0}, repetition_penalty=3.0
        )
        sampler.add_row(row, params, [1, 2], [], [])
    batch = sampler.sample(logits.repeat(3, 1), [0, 1, 2])
    best = raw.argsort(descending=True).tolist()
    for entry, count in zip(batch.logprobs, (0, 3, VOCAB), strict=True):
        assert entry is not None
        assert entry.token_ids == [9, *best[:count]]
        assert entry.logprobs == pytest.approx([raw[token].item() for token in entry.token_ids], abs=1e-5)
        assert entry.rank == best.index(9) + 1


def test_prompt_logprobs_and_a_row_without_any() -> None:
    sampler = Sampler(VOCAB, 1)
    logits = torch.cat([logits_of(1), logits_of(2)])
    entries = sampler.prompt_logprobs(logits, [4, 5], 1)
    for entry, row, token in zip(entries, logits, (4, 5), strict=True):
        assert entry.token_ids == [token, row.argmax().item()]
        assert entry.rank == int((row > row[token]).sum()) + 1
    sampler.add_row(0, greedy(), [1], [], [])
    assert sampler.sample(logits[:1], [0]).logprobs == [None]
    assert sampler.sample(logits[:0], []).token_ids == []
