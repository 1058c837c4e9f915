"""From prompts to core requests: ids, seeds, children, bad words."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.frontend.processor import InputProcessor
from engine.sampling_params import SamplingParams
from tests.frontend.byte_tokenizer import BOS, EOS, ByteTokenizer
from tests.frontend.engines import info_for


def processor(*, add_bos: bool = False, **fields: Any) -> InputProcessor:
    config = EngineConfig(**fields)
    return InputProcessor(config, info_for(config), ByteTokenizer(add_bos=add_bos))


def test_text_and_token_ids() -> None:
    of_text = processor(add_bos=True).process("hi", SamplingParams(), "r")
    assert (of_text.prompt, of_text.prompt_token_ids) == ("hi", [BOS, 104, 105])
    of_ids = processor(add_bos=True).process((104, 105), SamplingParams(), "r")
    assert (of_ids.prompt, of_ids.prompt_token_ids) == (None, [104, 105])
    assert of_text.children[0].eos_token_ids == [EOS]
    assert of_text.children[0].prompt_token_ids == [BOS, 104, 105]


@pytest.mark.parametrize("prompt", ["", [], None, 5, b"hi", {"a": 1}, "\ud800", [0.5], ["a"]])
def test_bad_prompts(prompt: Any) -> None:
    for add_bos in (False, True):
        with pytest.raises(InvalidInputError) as caught:
            processor(add_bos=add_bos).process(prompt, SamplingParams(), "r")
        assert caught.value.field == "prompt"


def test_a_text_far_too_long_is_refused_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = processor(max_model_len=50)
    longest = 50 * ByteTokenizer.longest_token
    monkeypatch.setattr(inputs.tokenizer, "encode", lambda text, **_: list(b"few"))
    assert inputs.process("x" * (longest - 1), SamplingParams(), "r").prompt_token_ids == list(b"few")
    with pytest.raises(InvalidInputError, match=f"prompt='{longest} characters': at most 49 tokens"):
        inputs.process("x" * longest, SamplingParams(), "r")


def test_inner_ids_are_never_reused_and_outer_ones_kept() -> None:
    inputs = processor()
    seen = set()
    for request_id in ("a", "a", "a#0", "a#1_0", "b"):
        for n in (1, 3):
            request = inputs.process("x", SamplingParams(n=n), request_id)
            assert request.external_id == request_id
            for child in request.children:
                assert child.external_id == request_id
                assert child.request_id not in seen
                seen.add(child.request_id)


def test_children_follow_their_parent() -> None:
    request = processor().process(
        "x", SamplingParams(n=3, seed=40, prompt_logprobs=1), "r", priority=7, cache_salt="s"
    )
    assert [child.params.seed for child in request.children] == [40, 41, 42]
    assert [child.params.n for child in request.children] == [1, 1, 1]
    assert [child.params.prompt_logprobs for child in request.children] == [1, None, None]
    assert {(child.priority, child.cache_salt) for child in request.children} == {(7, "s")}


def test_child_seeds_wrap_around() -> None:
    request = processor().process("x", SamplingParams(n=2, seed=2**63 - 1), "r")
    assert [child.params.seed for child in request.children] == [2**63 - 1, -(2**63)]


def test_fresh_seeds_differ_and_can_be_repeated() -> None:
    def seeds(base: int) -> list[int | None]:
        inputs = processor(seed=base)
        return [
            inputs.process("x", SamplingParams(seed=seed), "r").params.seed for seed in (None, -1, None, 5)
        ]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 7  # only the explicit 5 is in both
    assert seeds(1)[3] == 5


def test_bad_words_are_banned_bare_and_behind_a_space() -> None:
    request = processor().process("x", SamplingParams(bad_words=(" no", "no", "a")), "r")
    assert request.params.bad_words_token_ids == (
        tuple(b"no"),
        tuple(b" no"),
        tuple(b"a"),
        tuple(b" a"),
    )
    assert processor().process("x", SamplingParams(bad_words=(" ",)), "r").params.bad_words_token_ids[0] == (
        32,
    )


def test_max_tokens_defaults() -> None:
    assert processor().process("x" * 10, SamplingParams(), "r").params.max_tokens == 16
    assert processor().process("x" * 10, SamplingParams(max_tokens=None), "r").params.max_tokens == 190


def test_chat() -> None:
    inputs = processor(add_bos=True)
    messages = [{"role": "user", "content": "hi"}]
    assert (
        bytes(inputs.render_chat(messages)) == b"user: hi\nassistant: "
    )  # the template brings its own bos, or none
    assert bytes(inputs.render_chat(messages, add_generation_prompt=False)) == b"user: hi\n"
    for bad in ([], [{"role": "bishop", "content": ""}]):
        with pytest.raises(InvalidInputError, match="messages"):
            inputs.render_chat(bad)


def test_a_refused_request_takes_no_number() -> None:
    inputs = processor()
    first = inputs.process("x", SamplingParams(), "r").children[0].request_id
    with pytest.raises(InvalidInputError):
        inputs.process("x" * 500, SamplingParams(), "r")
    assert inputs.process("x", SamplingParams(), "r").children[0].request_id == "r#1"
    assert first == "r#0"
