"""The rules of docs/semantics.md that need a whole engine; the others are tested where they are
implemented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidInputError
from engine.frontend.llm import LLM
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from tests.frontend.byte_tokenizer import EOS
from tests.frontend.engines import make_llm
from tests.helpers.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[2]
MakeLLM = Callable[..., LLM]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeLLM]:
    """``tiny(**config)``: an engine on a tiny random model, in float32, on the reference backend."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    made: list[LLM] = []

    def make(**fields: Any) -> LLM:
        settings = {
            "dtype": "float32",
            "attention_backend": "reference",
            "num_threads": 1,
            "max_num_seqs": 64,
        }
        made.append(LLM(str(folder), **{**settings, "num_gpu_blocks_override": 200, **fields}))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


def test_every_rule_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "semantics.md").read_text()
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    rules = [line for line in text.splitlines() if line.startswith("- ")]
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named <= defined
    assert [
        rule for rule in rules if "`test_" not in rule and not rule.startswith("- **A request's room**")
    ] == []


@pytest.mark.parametrize(
    "config", [{"max_model_len": 32}, {"max_model_len": 200, "num_gpu_blocks_override": 3}]
)
def test_a_prompt_that_fills_the_room_is_refused_and_one_token_less_gets_one_token(
    config: dict[str, int],
) -> None:
    llm = make_llm(check_invariants=True, **config)
    with pytest.raises(InvalidInputError, match="prompt='32 tokens': at most 31"):
        llm.generate("x" * 32, SamplingParams(max_tokens=None))
    (output,) = llm.generate("x" * 31, SamplingParams(max_tokens=None))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("x", FinishReason.LENGTH)
    (filled,) = llm.generate("x", SamplingParams(max_tokens=None))
    assert len(filled.outputs[0].token_ids) == 31


def test_eos_on_the_last_allowed_token_is_a_stop() -> None:
    (output,) = make_llm().generate([*b"ab", EOS], SamplingParams(max_tokens=3))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", FinishReason.STOP)
    assert output.outputs[0].stop_reason is None


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    (output,) = make_llm().generate("abEND", SamplingParams(max_tokens=5, stop=("END",)))
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", FinishReason.STOP)
    assert output.outputs[0].stop_reason == "END"


def test_stop_strings_in_or_from_the_prompt_do_not_count() -> None:
    # The echo reads "D.END.EN": with the prompt "END" is there from the output's first character on.
    (output,) = make_llm().generate("D.EN", SamplingParams(max_tokens=20, stop=("END",)))
    assert output.outputs[0].text == "D."
    assert len(output.outputs[0].token_ids) == 5
    (straddling,) = make_llm().generate("D.EN", SamplingParams(max_tokens=4, stop=("END",)))
    assert (straddling.outputs[0].text, straddling.outputs[0].finish_reason) == ("D.EN", FinishReason.LENGTH)
    (inside,) = make_llm().generate("END", SamplingParams(max_tokens=2, stop=("END",)))
    assert (inside.outputs[0].text, inside.outputs[0].finish_reason) == ("EN", FinishReason.LENGTH)


def test_min_tokens_holds_back_eos_stop_ids_and_stop_strings(tiny: MakeLLM) -> None:
    (text,) = make_llm().generate("aEND", SamplingParams(max_tokens=20, min_tokens=4, stop=("END",)))
    assert text.outputs[0].text == "aENDa"
    assert len(text.outputs[0].token_ids) == 8
    eos_id, stop_id = 2, 17
    for token in (eos_id, stop_id):
        params = SamplingParams(
            temperature=0.0, max_tokens=20, min_tokens=4, stop_token_ids=(stop_id,), logit_bias={token: 100.0}
        )
        (output,) = tiny().generate([5, 6, 7], params)
        assert len(output.outputs[0].token_ids) == 5
        assert output.outputs[0].token_ids[-1] == token
        assert not {eos_id, stop_id} & set(output.outputs[0].token_ids[:4])


def test_an_aborted_request_counts_what_was_delivered() -> None:
    llm = make_llm()
    processed = llm._processor.process("abc", SamplingParams(max_tokens=50), "r")
    news: list[Any] = []
    llm._outputs.add(processed, news.append)
    llm._client.add(processed.children[0])
    for _ in range(5):
        llm._outputs.process(llm._client.step())
    llm._client.abort(llm._outputs.abort(["r"]))
    while llm._client.has_work():
        llm._outputs.process(llm._client.step())
    assert "".join(delta.outputs[0].text for delta in news) == "abcab"
    assert news[-1].outputs[0].finish_reason is FinishReason.ABORT
    assert llm.stats.kv_blocks_used == 0


def test_a_seed_gives_the_same_tokens_alone_in_a_batch_chunked_and_preempted(tiny: MakeLLM) -> None:
    prompt = [(7 * i) % 380 for i in range(40)]
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=42, max_tokens=24, ignore_eos=True)
    alone = tiny().generate(prompt, params)[0].outputs[0].token_ids
    assert tiny().generate(prompt, params)[0].outputs[0].token_ids == alone
    neighbours = [[i, i + 1, 3 * i] for i in range(31)]
    mixed = [SamplingParams(temperature=i % 3 / 2, max_tokens=30, ignore_eos=True) for i in range(31)]
    batch = tiny().generate([*neighbours, prompt], [*mixed, params])
    assert batch[-1].outputs[0].token_ids == alone
    chunked = tiny(max_num_batched_tokens=5, max_num_seqs=4).generate([prompt, [1, 2]], params)
    assert chunked[0].outputs[0].token_ids == alone
    small = tiny(num_gpu_blocks_override=9, max_model_len=128, max_num_seqs=8, check_invariants=True)
    crowd = small.generate([[i, *prompt[1:30]] for i in range(5)] + [prompt], [mixed[1]] * 5 + [params])
    assert small.stats.num_preemptions > 0
    assert crowd[-1].outputs[0].token_ids == alone
    other = SamplingParams(temperature=1.0, top_p=0.95, seed=43, max_tokens=24, ignore_eos=True)
    assert tiny().generate(prompt, other)[0].outputs[0].token_ids != alone


def test_prompt_logprobs_are_complete_however_often_they_are_asked_for(tiny: MakeLLM) -> None:
    llm = tiny(max_num_batched_tokens=64)
    prompt = [(11 * i) % 380 for i in range(33)]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    first, second = (llm.generate(prompt, params)[0].prompt_logprobs for _ in range(2))
    assert first is not None
    assert second is not None
    assert first[0] is None
    assert [entries[0].token_id for entries in first[1:] if entries] == prompt[1:]
    for one, two in zip(first[1:], second[1:], strict=True):
        assert one is not None
        assert two is not None
        assert [entry.logprob for entry in one] == pytest.approx([entry.logprob for entry in two], abs=1e-4)
    several = llm.generate(prompt, SamplingParams(n=2, seed=1, max_tokens=1, prompt_logprobs=0))[0]
    assert several.prompt_logprobs is not None
    assert len(several.prompt_logprobs) == 33


def test_a_prefix_hit_does_not_change_the_logprobs(tiny: MakeLLM) -> None:
    llm = tiny()
    prompt = [(13 * i) % 380 for i in range(70)]
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=5, ignore_eos=True)
    cold, warm = (llm.generate(prompt, params)[0] for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 64)
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids
    assert cold.outputs[0].logprobs is not None
    assert warm.outputs[0].logprobs is not None
    for one, two in zip(cold.outputs[0].logprobs, warm.outputs[0].logprobs, strict=True):
        assert [entry.logprob for entry in one] == pytest.approx([entry.logprob for entry in two], abs=1e-4)


def test_beam_search_on_a_model_ranks_by_score(tiny: MakeLLM) -> None:
    from engine.frontend.beam_search import BeamSearchParams

    llm = tiny(max_logprobs=1)  # a user's limit doesn't bind the search
    params = BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True)
    (output,) = llm.beam_search([5, 6, 7], params)
    scores = [output.metrics[f"score_{i}"] for i in range(4)]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    greedy = llm.generate(
        [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    )[0]
    assert greedy.outputs[0].logprobs is not None
    total = sum(entries[0].logprob for entries in greedy.outputs[0].logprobs)
    assert output.metrics["cumulative_logprob_0"] >= total - 1e-4
    assert llm.stats.kv_blocks_used == 0
