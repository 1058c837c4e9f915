"""Beam search on a model small enough to try every sequence."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.frontend.beam_search import BeamSearch, BeamSearchParams
from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.frontend.processor import InputProcessor
from engine.messages import FinishReason
from tests.frontend.byte_tokenizer import EOS, ByteTokenizer
from tests.frontend.engines import info_for

TOKENS = [97, 98, 99, EOS]
TABLE = np.log(np.random.default_rng(3).dirichlet(np.ones(4), size=len(TOKENS)))
"""Logprob of the next token (column) after the last one (row)."""


def processor() -> InputProcessor:
    config = EngineConfig()
    return InputProcessor(config, info_for(config), ByteTokenizer())


def run(params: BeamSearchParams, prompt: list[int] | None = None) -> RequestOutput:
    search = BeamSearch(processor(), prompt or [97], params)
    while not search.done:
        search.advance([answer(prompt, search.step_params.logprobs or 0) for prompt in search.prompts])
    return search.result("r")


def answer(prompt: list[int], count: int) -> RequestOutput:
    row = TABLE[TOKENS.index(prompt[-1])]
    best = sorted(range(4), key=lambda i: -row[i])[:count]
    entries = [Logprob(TOKENS[i], float(row[i]), None, "", b"") for i in best]
    completion = CompletionOutput(0, "", [entries[0].token_id], [[entries[0], *entries]], FinishReason.LENGTH)
    return RequestOutput("x", None, prompt, [completion], finished=True)


def by_exhaustion(length: int, ignore_eos: bool, penalty: float) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence that beam search may return, best first."""
    found = {}
    for sequence in itertools.product(TOKENS, repeat=length):
        if not ignore_eos and EOS in sequence:
            sequence = sequence[: sequence.index(EOS) + 1]
        path = [97, *sequence]
        total = sum(TABLE[TOKENS.index(a)][TOKENS.index(b)] for a, b in itertools.pairwise(path))
        counted = len(path) - (not ignore_eos and sequence[-1] == EOS)
        found[sequence] = total / counted**penalty
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(ignore_eos: bool, penalty: float) -> None:
    params = BeamSearchParams(beam_width=64, max_tokens=3, ignore_eos=ignore_eos, length_penalty=penalty, n=5)
    output = run(params)
    expected = by_exhaustion(3, ignore_eos, penalty)[:5]
    assert [tuple(completion.token_ids) for completion in output.outputs] == [
        tokens for tokens, _ in expected
    ]
    for index, (_, score) in enumerate(expected):
        assert output.metrics[f"score_{index}"] == pytest.approx(score)


def test_a_beam_of_one_is_greedy() -> None:
    output = run(BeamSearchParams(beam_width=1, max_tokens=4, ignore_eos=True, logprobs=True))
    tokens, last = [], 97
    for _ in range(4):
        last = TOKENS[int(np.argmax(TABLE[TOKENS.index(last)]))]
        tokens.append(last)
    assert output.outputs[0].token_ids == tokens
    assert output.outputs[0].logprobs is not None
    total = sum(entries[0].logprob for entries in output.outputs[0].logprobs)
    assert output.metrics["cumulative_logprob_0"] == pytest.approx(total)


def test_a_finished_beam_says_stop_and_hides_its_eos() -> None:
    outputs = run(BeamSearchParams(beam_width=64, max_tokens=3)).outputs
    stopped = [completion for completion in outputs if completion.finish_reason is FinishReason.STOP]
    assert stopped
    for completion in stopped:
        assert completion.token_ids[-1] == EOS
        assert completion.text == bytes(completion.token_ids[:-1]).decode()
    assert {c.finish_reason for c in outputs if c not in stopped} == {FinishReason.LENGTH}
    shown = run(
        BeamSearchParams(
            beam_width=64, max_tokens=1, include_stop_str_in_output=True, skip_special_tokens=False
        )
    )
    assert "<eos>" in [completion.text for completion in shown.outputs]


def test_it_asks_for_twice_the_width_and_ends_with_the_room() -> None:
    search = BeamSearch(processor(), [97] * 198, BeamSearchParams(beam_width=3, max_tokens=None))
    assert search.step_params.logprobs == 6
    turns = 0
    while not search.done:
        turns += 1
        search.advance([answer(prompt, 6) for prompt in search.prompts])
    assert turns == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0), ("beam_width", 65), ("beam_width", True), ("n", 0), ("n", 3), ("max_tokens", 0),
        ("length_penalty", math.nan), ("length_penalty", 11.0), ("max_tokens", 500),
    ],
)  # fmt: skip
def test_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        BeamSearch(processor(), "x", BeamSearchParams(**{"beam_width": 2, field: value}))  # type: ignore[arg-type]
    assert caught.value.field == field
