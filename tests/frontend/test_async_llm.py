"""The server's front end, its core in a real second process running the echo model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.client import ProcessCoreClient
from engine.errors import EngineDeadError, InvalidInputError, ModelLoadError, QueueFullError
from engine.frontend import async_llm
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.beam_search import BeamSearchParams
from engine.frontend.outputs import RequestOutput
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from tests.frontend import engines
from tests.frontend.byte_tokenizer import ByteTokenizer

DEADLINE_S = 30.0
ENDLESS = {"max_model_len": 100_000, "num_gpu_blocks_override": 7_000}
"""Room for requests that would run far beyond the deadline: only an abort can end them."""


@pytest.fixture(autouse=True)
def byte_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_llm, "load_tokenizer", lambda config: ByteTokenizer())


@asynccontextmanager
async def running(factory: str, **fields: Any) -> AsyncIterator[AsyncLLM]:
    engine = await start(factory, **fields)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield engine
    finally:
        await engine.shutdown()


async def start(factory: str, **fields: Any) -> AsyncLLM:
    path = f"{engines.HERE}:{factory}"
    return await AsyncLLM.start(EngineConfig.create(**fields), lambda c: ProcessCoreClient.start(c, path))


async def collect(engine: AsyncLLM, prompt: Any, request_id: str = "r", **params: Any) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, SamplingParams(**params), request_id)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def idle(engine: AsyncLLM) -> bool:
    stats = engine.stats
    return (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)


async def test_many_requests_at_once_each_get_their_own() -> None:
    async with running("echo", max_num_seqs=8, max_num_batched_tokens=64) as engine:
        prompts = [f"prompt {i} of many" for i in range(30)]
        results = await asyncio.gather(
            *(collect(engine, prompt, "same id", max_tokens=40) for prompt in prompts)
        )
        for prompt, deltas in zip(prompts, results, strict=True):
            assert "".join(delta.outputs[0].text for delta in deltas) == (prompt * 4)[:40]
            assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
            assert len(deltas) == 40  # one delta a token
            assert deltas[-1].outputs[0].timings is not None
        assert engine.info["num_kv_blocks"] == 65
        assert (engine.max_model_len, engine.max_request_tokens) == (200, 200)
        await until(lambda: idle(engine))


async def test_refusals_and_stop_strings_and_n() -> None:
    async with running("echo") as engine:
        with pytest.raises(InvalidInputError, match="temperature"):
            await collect(engine, "x", temperature=9.0)
        with pytest.raises(InvalidInputError, match="prompt"):
            await collect(engine, [999_999])
        deltas = await collect(engine, "go END", max_tokens=100, stop=("END",), n=2)
        texts = [
            "".join(o.outputs[0].text for o in deltas if o.outputs[0].index == index) for index in (0, 1)
        ]
        assert texts == ["go ", "go "]
        await until(lambda: idle(engine))


@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
async def test_leaving_a_stream_frees_everything_in_whatever_state(state: str) -> None:
    async with running("paced", max_num_seqs=1, max_num_batched_tokens=1, **ENDLESS) as engine:
        if state == "decode":
            stream = engine.generate("a", SamplingParams(max_tokens=50_000), "r")
            async with aclosing(stream):
                await anext(stream)
        else:
            tasks = [
                asyncio.create_task(collect(engine, "x" * 50_000)) for _ in range(1 + (state == "queued"))
            ]
            await until(lambda: engine.stats.num_running == 1 and engine.stats.num_waiting == len(tasks) - 1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: idle(engine))
        assert engine._outputs.num_sequences == 0
        assert len(await collect(engine, "ab", max_tokens=3)) == 3


async def test_abort_by_id_ends_the_stream_with_abort() -> None:
    async with running("paced", **ENDLESS) as engine:
        task = asyncio.create_task(collect(engine, "abc", "mine", max_tokens=50_000))
        other = asyncio.create_task(collect(engine, "abc", "other", max_tokens=20))
        await until(lambda: engine.stats.num_running == 2)
        await engine.abort("mine")
        await engine.abort("unknown")
        deltas = await task
        assert deltas[-1].outputs[0].finish_reason is FinishReason.ABORT
        assert (await other)[-1].outputs[0].finish_reason is FinishReason.LENGTH
        await until(lambda: idle(engine))


async def test_an_id_may_be_used_again_at_once() -> None:
    async with running("paced", **ENDLESS) as engine:
        for prompt in ("abc", "xyz", "123"):
            stream = engine.generate(prompt, SamplingParams(max_tokens=50_000), "same")
            async with aclosing(stream):
                assert (await anext(stream)).outputs[0].text == prompt[0]
        deltas = await collect(engine, "last", "same", max_tokens=8)
        assert "".join(delta.outputs[0].text for delta in deltas) == "lastlast"
        await until(lambda: idle(engine))


async def test_the_queue_limit() -> None:
    async with running("paced", max_num_seqs=2, max_waiting_requests=3) as engine:
        tasks = [asyncio.create_task(collect(engine, "x", max_tokens=60)) for _ in range(5)]
        await until(lambda: engine._outputs.num_sequences == 5)
        with pytest.raises(QueueFullError, match="max_waiting_requests=3"):
            await collect(engine, "x")
        await asyncio.gather(*tasks)
        await collect(engine, "x")


async def test_reset_prefix_cache() -> None:
    async with running("paced") as engine:
        await collect(engine, "x" * 40, max_tokens=1)
        assert (await collect(engine, "x" * 40, max_tokens=1))[0].num_cached_tokens == 32
        await until(lambda: idle(engine))
        assert await engine.reset_prefix_cache()
        assert (await collect(engine, "x" * 40, max_tokens=1))[0].num_cached_tokens == 0
        task = asyncio.create_task(collect(engine, "x" * 40, max_tokens=100))
        await until(lambda: engine.stats.num_running == 1)
        assert not await engine.reset_prefix_cache()
        task.cancel()


async def test_steps_can_be_listened_to() -> None:
    async with running("echo") as engine:
        steps: list[int] = []
        engine.add_step_listener(lambda outputs: steps.append(outputs.step_tokens))
        await collect(engine, "abcd", max_tokens=3)
        assert [tokens for tokens in steps if tokens] == [4, 1, 1]


async def test_shutdown_drains_and_then_refuses() -> None:
    engine = await start("paced")
    task = asyncio.create_task(collect(engine, "ab", max_tokens=30))
    await until(lambda: engine.stats.num_running == 1)
    closing = asyncio.create_task(engine.shutdown(drain_timeout_s=DEADLINE_S))
    await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match="shutting down"):
        await collect(engine, "late")
    assert len(await task) == 30
    await closing
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await collect(engine, "too late")


async def test_shutdown_without_drain_fails_what_runs() -> None:
    engine = await start("paced")
    task = asyncio.create_task(collect(engine, "ab", max_tokens=150))
    await until(lambda: engine.stats.num_running == 1)
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await task


@pytest.mark.parametrize(
    ("factory", "message"),
    [("crashing", "RuntimeError: out of luck$"), ("exiting", "ended with exit code 7")],
)
async def test_death_fails_every_request_in_flight_and_every_later_one(factory: str, message: str) -> None:
    async with running(factory) as engine:
        others = [asyncio.create_task(collect(engine, "abc", max_tokens=150)) for _ in range(3)]
        await until(lambda: engine.stats.num_running == 3)
        reset = asyncio.create_task(engine.reset_prefix_cache())
        with pytest.raises(EngineDeadError, match=message):
            await collect(engine, [0, 1])
        for task in others:
            with pytest.raises(EngineDeadError, match=message):
                await task
        (outcome,) = await asyncio.gather(reset, return_exceptions=True)
        assert outcome is False or isinstance(
            outcome, EngineDeadError
        )  # answered or failed, but not left waiting
        assert engine.is_dead
        with pytest.raises(EngineDeadError, match=message):
            await collect(engine, "later")
        with pytest.raises(EngineDeadError, match=message):
            await engine.reset_prefix_cache()


@pytest.mark.parametrize(
    ("factory", "kind", "message"),
    [
        ("unloadable", ModelLoadError, r"^model='echo': damaged$"),
        ("misconfigured", InvalidInputError, r"^quantization='int9': none or int8$"),
        ("broken", EngineDeadError, r"^RuntimeError: no idea what happened$"),
        ("vanishing", EngineDeadError, r"exit code 9"),
    ],
)
async def test_a_failed_start_says_why_in_one_line(
    factory: str, kind: Callable[..., Awaitable[None]], message: str
) -> None:
    with pytest.raises(kind, match=message):  # type: ignore[call-overload]
        await start(factory)


async def test_death_ends_a_beam_search_with_one_plain_error() -> None:
    async with running("exiting") as engine:
        with pytest.raises(EngineDeadError, match="exit code 7"):
            await engine.beam_search([0, 1], BeamSearchParams(beam_width=2), "r")
        assert engine._outputs.num_sequences == 0
