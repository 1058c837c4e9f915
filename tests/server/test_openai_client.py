"""The official client's view: what it sends is understood, what it gets parses into its own types."""

from __future__ import annotations

import openai
import pytest
from openai import AsyncOpenAI

from engine.config import EngineConfig
from engine.frontend.beam_search import BeamSearchParams
from tests.server.fake_engine import EOS, FakeEngine

ASK = [{"role": "user", "content": "What is the capital of France?"}]


async def test_models(client: AsyncOpenAI) -> None:
    page = await client.models.list()
    assert [model.id for model in page.data] == ["fake"]
    model = await client.models.retrieve("fake")
    assert model.owned_by == "llm-serving-workbench"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other/model")


async def test_chat(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.num_cached_tokens = 4
    answer = await client.chat.completions.create(model="fake", messages=ASK)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", engine.reply)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    prompt = f"<user>{ASK[0]['content']}\n<assistant>".encode()
    assert engine.submitted[0].prompt == list(prompt)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(engine.reply) + 1
    assert answer.usage.total_tokens == len(prompt) + len(engine.reply) + 1
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_chat_content_parts_roles_and_kwargs(client: AsyncOpenAI, engine: FakeEngine) -> None:
    await client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None},
        ],
        extra_body={"add_generation_prompt": False, "continue_final_message": False},
    )
    assert engine.submitted[0].prompt == list(b"<system>Be brief.\n<user>a\nb\n<assistant>c\n")


async def test_chat_stream(client: AsyncOpenAI, engine: FakeEngine) -> None:
    stream = await client.chat.completions.create(
        model="fake", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    content = chunks[1:-2]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in content) == engine.reply
    assert all(chunk.choices[0].finish_reason is None for chunk in content)
    assert all(chunk.choices[0].delta.role is None for chunk in content)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(engine.reply) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_chat_limits_and_finish_reason(client: AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.chat.completions.create(model="fake", messages=ASK, max_completion_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == engine.reply[:5]
    await client.chat.completions.create(model="fake", messages=ASK)
    prompt = engine.submitted[1].prompt
    assert engine.submitted[1].params.max_tokens == engine.max_model_len - len(prompt)


async def test_chat_logprobs(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = "é"
    answer = await client.chat.completions.create(model="fake", messages=ASK, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.bytes for entry in logprobs.content] == [[0xC3], [0xA9], list(b"<end>")]
    assert [entry.logprob for entry in logprobs.content] == [-0.5] * 3
    top = logprobs.content[0].top_logprobs
    assert [(entry.token, entry.logprob) for entry in top] == [("A", -1.0), ("B", -2.0), ("C", -9999.0)]
    assert engine.submitted[0].params.logprobs == 3
    bare = await client.chat.completions.create(model="fake", messages=ASK, logprobs=True)
    assert bare.choices[0].logprobs is not None
    assert bare.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in bare.choices[0].logprobs.content] == [[], [], []]


async def test_completion_with_several_prompts_and_n(client: AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.completions.create(
        model="fake", prompt=["one", "three"], n=2, temperature=1.0, max_tokens=100
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {engine.reply}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("one") + len("three")
    assert answer.usage.completion_tokens == 4 * (len(engine.reply) + 1)
    ids = [submitted.request_id for submitted in engine.submitted]
    assert len(ids) == 2
    assert ids[0].removesuffix("-0") == ids[1].removesuffix("-1")


async def test_completion_of_token_ids(client: AsyncOpenAI, engine: FakeEngine) -> None:
    await client.completions.create(model="fake", prompt=[1, 2, 3])
    await client.completions.create(model="fake", prompt=[[4], [5, 6]])
    assert [submitted.prompt for submitted in engine.submitted] == [[1, 2, 3], [4], [5, 6]]
    assert engine.submitted[0].params.max_tokens == 16


async def test_completion_logprobs(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = "ab"
    answer = await client.completions.create(model="fake", prompt="hi", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b", "<end>"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -0.5, "A": -1.0, "B": -2.0}


async def test_echo_with_logprobs(client: AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.completions.create(model="fake", prompt="hi", echo=True, logprobs=1, max_tokens=2)
    choice = answer.choices[0]
    assert choice.text == "hi" + engine.reply[:2]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert choice.logprobs.tokens == ["h", "i", *engine.reply[:2]]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[0] is None


async def test_scoring_a_prompt(client: AsyncOpenAI, engine: FakeEngine) -> None:
    """``echo`` with ``max_tokens=0``, as evaluation harnesses send it."""
    answer = await client.completions.create(
        model="fake", prompt=[104, 105], echo=True, logprobs=1, max_tokens=0
    )
    choice = answer.choices[0]
    assert choice.text == "hi"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


class TestPriorityPolicy:
    @pytest.fixture
    def engine(self) -> FakeEngine:
        return FakeEngine(config=EngineConfig.create(model="fake", scheduling_policy="priority"))

    async def test_priority_arrives(self, client: AsyncOpenAI, engine: FakeEngine) -> None:
        await client.completions.create(model="fake", prompt="hi", extra_body={"priority": -3})
        await client.chat.completions.create(model="fake", messages=ASK, extra_body={"priority": 5})
        assert [submitted.priority for submitted in engine.submitted] == [-3, 5]


async def test_every_sampling_field_arrives(client: AsyncOpenAI, engine: FakeEngine) -> None:
    await client.completions.create(
        model="fake",
        prompt="hi",
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=7,
        stop=["x", "y"],
        logit_bias={"5": 1.5},
        max_tokens=3,
        user="someone",
        extra_body={
            "top_k": 4,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 2,
            "stop_token_ids": [9],
            "include_stop_str_in_output": True,
            "bad_words": ["bad"],
            "allowed_token_ids": [65, 66],
            "prompt_logprobs": 1,
            "skip_special_tokens": False,
            "priority": 0,
            "cache_salt": "salt",
            "metadata": {"a": "b"},
            "suffix": None,
            "best_of": 1,
        },
    )
    submitted = engine.submitted[0]
    params = submitted.params
    assert (submitted.priority, submitted.cache_salt) == (0, "salt")
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 4, 0.05)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (params.seed, params.stop, params.logit_bias) == (7, ("x", "y"), {5: 1.5})
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (3, 2, True)
    assert (params.stop_token_ids, params.allowed_token_ids, params.bad_words) == ((9,), (65, 66), ("bad",))
    assert (params.include_stop_str_in_output, params.skip_special_tokens) == (True, False)
    assert params.prompt_logprobs == 1


async def test_prompt_logprobs(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="hi", extra_body={"prompt_logprobs": 2})
    logprobs = answer.choices[0].model_extra["prompt_logprobs"]
    assert logprobs[0] is None
    assert logprobs[1]["105"] == {"logprob": -0.5, "rank": 1, "decoded_token": "i", "bytes": [105]}
    assert set(logprobs[1]) == {"105", "65", "66"}


@pytest.mark.parametrize("stream", [False, True])
async def test_return_token_ids(client: AsyncOpenAI, engine: FakeEngine, stream: bool) -> None:
    engine.reply = "é!"
    expected = [*"é!".encode(), EOS]
    extra = {"return_token_ids": True}
    chat = await client.chat.completions.create(model="fake", messages=ASK, stream=stream, extra_body=extra)
    text = await client.completions.create(model="fake", prompt="hi", stream=stream, extra_body=extra)
    if not stream:
        assert chat.choices[0].model_extra["token_ids"] == expected
        assert chat.model_extra["prompt_token_ids"] == engine.submitted[0].prompt
        assert text.choices[0].model_extra["token_ids"] == expected
        assert text.choices[0].model_extra["prompt_token_ids"] == list(b"hi")
        return
    chat_chunks = [chunk async for chunk in chat]
    assert chat_chunks[0].model_extra["prompt_token_ids"] == engine.submitted[0].prompt
    assert [t for c in chat_chunks for t in c.choices[0].model_extra.get("token_ids", [])] == expected
    text_chunks = [chunk async for chunk in text]
    assert text_chunks[0].choices[0].model_extra["prompt_token_ids"] == list(b"hi")
    assert [t for c in text_chunks for t in c.choices[0].model_extra["token_ids"]] == expected


async def test_errors_become_the_clients_types(client: AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature=9"):
        await client.completions.create(model="fake", prompt="hi", temperature=9)
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="nope", prompt="hi")
    engine.die("out of luck")
    with pytest.raises(openai.InternalServerError, match="out of luck"):
        await client.completions.create(model="fake", prompt="hi")


async def test_error_in_a_stream_is_raised(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fail_request = "this request failed"
    stream = await client.completions.create(model="fake", prompt="hi", stream=True)
    seen = []

    async def read() -> None:
        async for chunk in stream:
            seen.append(chunk.choices[0].text)

    with pytest.raises(openai.APIError, match="this request failed"):
        await read()
    assert seen == [engine.reply[0]]


async def test_text_of_both_ways_is_equal(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = "naïve 🙂 日本"
    whole = await client.completions.create(model="fake", prompt="hi", max_tokens=100)
    stream = await client.completions.create(model="fake", prompt="hi", max_tokens=100, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text == engine.reply
    assert all("�" not in chunk.choices[0].text for chunk in chunks)
    assert len(chunks) == len(engine.reply) + 1  # held-back bytes make no event of their own


@pytest.mark.parametrize("stream", [False, True])
async def test_beam_search(client: AsyncOpenAI, engine: FakeEngine, stream: bool) -> None:
    answer = await client.completions.create(
        model="fake",
        prompt="hi",
        n=3,
        max_tokens=5,
        temperature=0,
        stream=stream,
        extra_body={"use_beam_search": True, "length_penalty": 0.5, "ignore_eos": True},
    )
    if stream:
        texts = [chunk.choices[0].text async for chunk in answer if chunk.choices[0].text]
    else:
        texts = [choice.text for choice in answer.choices]
    assert texts == ["beam 0", "beam 1", "beam 2"]
    expected = BeamSearchParams(beam_width=3, n=3, max_tokens=5, length_penalty=0.5, ignore_eos=True)
    assert engine.beam_searches == [expected]


async def test_beam_search_of_a_dead_engine(client: AsyncOpenAI, engine: FakeEngine) -> None:
    engine.die("no power")
    with pytest.raises(openai.InternalServerError, match="no power"):
        await client.completions.create(model="fake", prompt="hi", extra_body={"use_beam_search": True})
