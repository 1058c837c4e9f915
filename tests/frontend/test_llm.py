"""The offline engine, in process, on the echo model: output is the prompt again."""

from __future__ import annotations

import pytest

from engine.errors import EngineDeadError, InvalidInputError
from engine.frontend.llm import LLM
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from tests.frontend.byte_tokenizer import EOS
from tests.frontend.engines import make_llm


@pytest.fixture
def llm() -> LLM:
    return make_llm(check_invariants=True)


def idle(llm: LLM) -> bool:
    stats = llm.stats
    return (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["first", [98, 99], "third one", "4"]
    params = [SamplingParams(max_tokens=n) for n in (3, 5, 2, 9)]
    outputs = llm.generate(prompts, params)
    assert [output.outputs[0].text for output in outputs] == ["fir", "bcbcb", "th", "444444444"]
    assert [output.prompt for output in outputs] == ["first", None, "third one", "4"]
    assert all(
        output.finished and output.outputs[0].finish_reason is FinishReason.LENGTH for output in outputs
    )
    assert idle(llm)


def test_one_prompt_is_a_batch_of_one_and_none_is_none(llm: LLM) -> None:
    assert [o.outputs[0].text for o in llm.generate("ab", SamplingParams(max_tokens=3))] == ["aba"]
    assert [o.outputs[0].text for o in llm.generate([97, 98], SamplingParams(max_tokens=3))] == ["aba"]
    assert llm.generate([]) == []
    assert len(llm.generate("ab")[0].outputs[0].token_ids) == 16


def test_n_children_and_prefix_hits_are_reported(llm: LLM) -> None:
    prompt = "x" * 40
    (output,) = llm.generate(prompt, SamplingParams(n=3, max_tokens=2))
    assert [(c.index, c.text) for c in output.outputs] == [(0, "xx"), (1, "xx"), (2, "xx")]
    (again,) = llm.generate(prompt, SamplingParams(max_tokens=2))
    assert again.num_cached_tokens == 32
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt)[0].num_cached_tokens == 0
    assert llm.generate(prompt, cache_salt="other")[0].num_cached_tokens == 0


def test_eos_stop_tokens_and_ignore_eos(llm: LLM) -> None:
    prompt = [*b"ab", EOS, *b"c"]
    eos, stop_id, ignoring = llm.generate(
        [prompt] * 3,
        [
            SamplingParams(max_tokens=10),
            SamplingParams(max_tokens=10, stop_token_ids=(98,)),
            SamplingParams(max_tokens=6, ignore_eos=True),
        ],
    )
    assert (eos.outputs[0].text, eos.outputs[0].token_ids[-1], eos.outputs[0].stop_reason) == (
        "ab",
        EOS,
        None,
    )
    assert (stop_id.outputs[0].text, stop_id.outputs[0].stop_reason) == ("a", 98)
    assert (ignoring.outputs[0].text, ignoring.outputs[0].finish_reason) == ("abcab", FinishReason.LENGTH)


def test_a_stop_string_ends_the_request_in_the_core_too(llm: LLM) -> None:
    stopped, other = llm.generate(["go END on", "other"], SamplingParams(max_tokens=100, stop=("END",)))
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == ("go ", "END")
    assert len(stopped.outputs[0].token_ids) == 6
    assert len(other.outputs[0].token_ids) == 100
    assert idle(llm)


def test_chat_takes_one_conversation_or_several(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (one,) = llm.chat(conversation, SamplingParams(max_tokens=8))
    assert one.outputs[0].text == "user: hi"
    assert len(llm.chat([conversation, conversation])) == 2


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidInputError, match="max_tokens"):
        llm.generate(["fine", "fine too"], [SamplingParams(), SamplingParams(max_tokens=10_000)])
    with pytest.raises(InvalidInputError, match="params"):
        llm.generate(["a", "b"], [SamplingParams()])
    assert idle(llm)
    assert llm.generate("ab", SamplingParams(max_tokens=1))[0].outputs[0].text == "a"


def test_a_failing_executor_raises_its_own_error_once_and_then_the_engine_is_dead() -> None:
    llm = make_llm("crashing")
    with pytest.raises(RuntimeError, match="out of luck"):
        llm.generate([[1, 2], [0]])
    with pytest.raises(EngineDeadError):
        llm.generate("x")
    llm.shutdown()
    llm.shutdown()


def test_interrupted_generation_aborts_what_was_started(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes between two steps, so the engine itself is sound."""
    process, calls = llm._outputs.process, []

    def interrupt(outputs):  # type: ignore[no-untyped-def]
        calls.append(outputs)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return process(outputs)

    monkeypatch.setattr(llm._outputs, "process", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc"] * 4, SamplingParams(max_tokens=50))
    monkeypatch.undo()
    assert idle(llm)
    assert llm.generate("ab", SamplingParams(max_tokens=3))[0].outputs[0].text == "aba"


def test_preemption_is_invisible() -> None:
    small = make_llm(
        num_gpu_blocks_override=9, max_num_seqs=8, max_num_batched_tokens=32, check_invariants=True
    )
    prompts = [f"prompt {i} " for i in range(8)]
    outputs = small.generate(prompts, SamplingParams(max_tokens=60))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].text == (prompt * 10)[:60]
    assert small.stats.num_preemptions > 0


def test_progress_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SamplingParams(max_tokens=2), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err
