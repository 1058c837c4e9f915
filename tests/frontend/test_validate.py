"""Every limit at the edge: refused with field, value and what is allowed; accepted values in their normal
form.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.frontend.validate import (
    RequestBounds,
    resolve_max_tokens,
    validate_params,
    validate_prompt,
    validate_request_fields,
)
from engine.sampling_params import SamplingParams

VOCAB = 100


def bounds(**config: Any) -> RequestBounds:
    return RequestBounds.of(
        EngineConfig(**config), vocab_size=VOCAB, max_model_len=64, num_kv_blocks=100, block_size=16
    )


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("n", 0, "an integer from 1 to 128"),
        ("n", 129, "an integer from 1 to 128"),
        ("n", True, "an integer from 1 to 128"),
        ("temperature", -0.1, "a number from 0 to 2"),
        ("temperature", 2.1, "a number from 0 to 2"),
        ("temperature", math.nan, "a number from 0 to 2"),
        ("temperature", math.inf, "a number from 0 to 2"),
        ("temperature", "hot", "a number from 0 to 2"),
        ("temperature", None, "a number from 0 to 2"),
        ("top_p", 0.0, "a number above 0 to 1"),
        ("top_p", 1.01, "a number above 0 to 1"),
        ("top_k", -2, "an integer from -1"),
        ("top_k", 1.5, "an integer from -1"),
        ("min_p", -0.1, "a number from 0 to 1"),
        ("min_p", 1.1, "a number from 0 to 1"),
        ("presence_penalty", 2.1, "a number from -2 to 2"),
        ("frequency_penalty", -2.1, "a number from -2 to 2"),
        ("repetition_penalty", 0.0, "a number above 0"),
        ("repetition_penalty", math.inf, "a number above 0"),
        ("seed", 2**63, "an integer from -9223372036854775808"),
        ("seed", 1.0, "an integer from -9223372036854775808"),
        ("stop", "END", "a list of texts"),
        ("stop", ("",), "texts of 1 to 1024 characters"),
        ("stop", ("x" * 1025,), "texts of 1 to 1024 characters"),
        ("stop", (5,), "texts of 1 to 1024 characters"),
        ("stop", tuple(map(str, range(65))), "at most 64"),
        ("bad_words", ("",), "texts of 1 to 1024 characters"),
        ("stop_token_ids", (VOCAB,), "token ids from 0 to 99"),
        ("stop_token_ids", (-1,), "token ids from 0 to 99"),
        ("stop_token_ids", (True,), "token ids from 0 to 99"),
        ("allowed_token_ids", (1, VOCAB), "token ids from 0 to 99"),
        ("bad_words_token_ids", ((1, VOCAB),), "token ids from 0 to 99"),
        ("bad_words_token_ids", ((),), "words of at least one token"),
        ("logit_bias", {VOCAB: 1.0}, "token ids from 0 to 99"),
        ("logit_bias", {"1": 1.0}, "token ids from 0 to 99"),
        ("logit_bias", {1: math.nan}, "a number from -inf"),
        ("logit_bias", {1: "much"}, "a number from -inf"),
        ("max_tokens", 0, "an integer from 1"),
        ("max_tokens", 1.0, "an integer from 1"),
        ("min_tokens", -1, "an integer from 0"),
        ("min_tokens", 17, "at most max_tokens (16)"),
        ("logprobs", -1, "an integer from 0 to 20 (max_logprobs)"),
        ("logprobs", 21, "an integer from 0 to 20 (max_logprobs)"),
        ("prompt_logprobs", 21, "an integer from 0 to 20 (max_logprobs)"),
        ("ignore_eos", 1, "true or false"),
        ("skip_special_tokens", None, "true or false"),
    ],
)
def test_refused(field: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_params(SamplingParams(**{field: value}), bounds())  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.allowed.startswith(allowed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0}, {"temperature": 2}, {"top_p": 1e-9}, {"top_k": 10**12}, {"min_p": 1.0},
        {"presence_penalty": -2.0}, {"repetition_penalty": 1e-9}, {"seed": -(2**63)}, {"n": 128},
        {"stop_token_ids": (0, 99)}, {"max_tokens": 10**9}, {"min_tokens": 16}, {"logprobs": 20},
        {"logprobs": 0}, {"stop": ("a",) * 100}, {"detokenize": False},
    ],
)  # fmt: skip
def test_accepted_at_the_limit(fields: dict[str, Any]) -> None:
    validate_params(SamplingParams(**fields), bounds())


def test_normal_form() -> None:
    params = validate_params(
        SamplingParams(
            top_k=-1, seed=-1, stop=("b", "a", "b"), stop_token_ids=(3, 1, 3), allowed_token_ids=(5, 5),
            bad_words=("x", "x"), bad_words_token_ids=((1, 1), (1, 1)), logit_bias={4: 1e9, 5: -250, 6: 1},
        ),
        bounds(),
    )  # fmt: skip
    assert (params.top_k, params.seed) == (0, None)
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("b", "a"), (3, 1), (5,))
    assert (params.bad_words, params.bad_words_token_ids) == (("x",), ((1, 1),))
    assert params.logit_bias == {4: 100.0, 5: -100.0, 6: 1.0}
    assert validate_params(params, bounds()) == params


def test_several_greedy_sequences_and_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"n=2: 1 when temperature is 0"):
        validate_params(SamplingParams(n=2, temperature=0.0), bounds())
    with pytest.raises(InvalidInputError, match=r"stop=.*detokenize is off"):
        validate_params(SamplingParams(stop=("a",), detokenize=False), bounds())


def test_max_logprobs_minus_one_opens_the_whole_vocabulary() -> None:
    for value in (-1, VOCAB):
        validate_params(SamplingParams(logprobs=value, prompt_logprobs=value), bounds(max_logprobs=-1))
    with pytest.raises(InvalidInputError):
        validate_params(SamplingParams(logprobs=VOCAB + 1), bounds(max_logprobs=-1))


def test_prompts() -> None:
    validate_prompt([0] * 63, bounds())
    with pytest.raises(
        InvalidInputError, match=r"prompt='64 tokens': at most 63 tokens.*max_model_len is 64"
    ):
        validate_prompt([0] * 64, bounds())
    with pytest.raises(InvalidInputError, match="at least one token"):
        validate_prompt([], bounds())
    for bad in (VOCAB, -1, 1.0, True, None, "1"):
        with pytest.raises(InvalidInputError, match="token ids from 0 to 99"):
            validate_prompt([1, bad], bounds())  # type: ignore[list-item]


def test_a_small_kv_pool_bounds_a_request_and_the_refusal_says_so() -> None:
    small = RequestBounds.of(
        EngineConfig(), vocab_size=VOCAB, max_model_len=64, num_kv_blocks=3, block_size=16
    )
    assert small.max_request_tokens == 32
    with pytest.raises(InvalidInputError, match="the KV cache holds 32 tokens"):
        validate_prompt([0] * 32, small)


def test_max_tokens_against_the_room() -> None:
    assert resolve_max_tokens(SamplingParams(max_tokens=None), 60, bounds()).max_tokens == 4
    assert resolve_max_tokens(SamplingParams(max_tokens=4), 60, bounds()).max_tokens == 4
    with pytest.raises(
        InvalidInputError, match=r"max_tokens=5: at most 4 \(max_model_len is 64, the prompt has 60\)"
    ):
        resolve_max_tokens(SamplingParams(max_tokens=5), 60, bounds())
    with pytest.raises(InvalidInputError, match="min_tokens=5: at most 4"):
        resolve_max_tokens(SamplingParams(max_tokens=None, min_tokens=5), 60, bounds())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("", 0, None), "request_id"),
        (("x" * 513, 0, None), "request_id"),
        ((None, 0, None), "request_id"),
        (("x", 2**63, None), "priority"),
        (("x", 1.5, None), "priority"),
        (("x", 0, ""), "cache_salt"),
        (("x", 0, 5), "cache_salt"),
    ],
)
def test_request_fields(arguments: tuple[Any, Any, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate_request_fields(*arguments)
    assert caught.value.field == field
