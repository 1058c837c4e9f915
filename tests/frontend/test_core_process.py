"""The core's process seen from outside: it never outlives its front end, and signals to the group don't end
it early.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pyarrow.parquet as pq
import pytest

from engine.config import EngineConfig
from engine.core.client import ProcessCoreClient
from engine.frontend.processor import InputProcessor
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from tests.frontend import engines
from tests.frontend.byte_tokenizer import ByteTokenizer

DEADLINE_S = 20.0


def gone(pid: int) -> bool:
    """Ended (a zombie that nobody has waited for yet counts)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still lives"
        time.sleep(0.02)


@pytest.mark.parametrize("factory", ["paced", "slow_to_load"])
def test_a_killed_front_end_leaves_no_orphan(factory: str) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio
        from engine.config import EngineConfig
        from engine.core.client import ProcessCoreClient

        async def main():
            start = asyncio.create_task(ProcessCoreClient.start(EngineConfig(), "{engines.HERE}:{factory}"))
            await asyncio.sleep({0 if factory == "paced" else 1})
            if "{factory}" == "paced":
                client = await start
            print("up", flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
        """
    )
    front_end = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert front_end.stdout is not None
        assert front_end.stdout.readline() == "up\n"
        (core,) = psutil.Process(front_end.pid).children()
        front_end.send_signal(signal.SIGKILL)
        front_end.wait(DEADLINE_S)
        wait_gone(core.pid)
    finally:
        front_end.kill()
        front_end.wait()


async def test_shutdown_ends_the_process_and_removes_its_sockets() -> None:
    client = await ProcessCoreClient.start(EngineConfig(), f"{engines.HERE}:paced")
    process, folder = client._process, client._folder
    assert process is not None
    assert folder.is_dir()
    await client.shutdown()
    assert process.returncode == 0
    assert not folder.exists()
    await client.shutdown()


async def test_a_cancelled_start_leaves_nothing() -> None:
    before = {child.pid for child in psutil.Process().children()}
    start = asyncio.create_task(ProcessCoreClient.start(EngineConfig(), f"{engines.HERE}:slow_to_load"))
    while not (new := {child.pid for child in psutil.Process().children()} - before):
        await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    for pid in new:
        wait_gone(pid)


async def test_signals_meant_for_the_group_do_not_end_the_core() -> None:
    client = await ProcessCoreClient.start(EngineConfig(), f"{engines.HERE}:paced")
    try:
        assert client._process is not None
        os.kill(client._process.pid, signal.SIGINT)
        os.kill(client._process.pid, signal.SIGTERM)
        answer = asyncio.create_task(client.reset_prefix_cache())
        reader = asyncio.create_task(client.get_outputs())
        assert await asyncio.wait_for(answer, DEADLINE_S)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    finally:
        await client.shutdown()


async def test_ctrl_c_while_the_core_still_imports_does_not_end_it() -> None:
    before = {child.pid for child in psutil.Process().children()}
    start = asyncio.create_task(ProcessCoreClient.start(EngineConfig(), f"{engines.HERE}:paced"))
    sent = 0
    async with asyncio.timeout(DEADLINE_S):
        while not start.done():
            for child in psutil.Process().children():
                if (
                    child.pid not in before
                    and child.name() != "sh"
                    and "engine.core.process" in child.cmdline()
                ):
                    child.send_signal(signal.SIGINT)
                    sent += 1
            await asyncio.sleep(0.005)
    client = await start
    await client.shutdown()
    assert sent > 5


async def test_a_request_that_the_core_refuses_is_answered_and_harms_nobody() -> None:
    """The front end refuses it first; the core must not rely on that."""
    client = await ProcessCoreClient.start(EngineConfig(max_model_len=50), f"{engines.HERE}:paced")
    try:
        inputs = InputProcessor(EngineConfig(max_model_len=5_000), client.info, ByteTokenizer())
        good = inputs.process("abc", SamplingParams(max_tokens=5), "good").children[0]
        client.add(good)
        client.add(msgspec.structs.replace(good, request_id="long", prompt_token_ids=[1] * 60))
        client.add(good)  # an id that is in use
        refused, finished = [], []
        while len(refused) + len(finished) < 3:
            news = await asyncio.wait_for(client.get_outputs(), DEADLINE_S)
            refused += [output for output in news.outputs if output.error is not None]
            finished += [output for output in news.outputs if output.finish_reason is FinishReason.LENGTH]
        assert [output.request_id for output in finished] == ["good#0"]
        assert [(output.request_id, output.finish_reason) for output in refused] == [
            ("long", FinishReason.ERROR),
            ("good#0", FinishReason.ERROR),
        ]
        assert "at most 49 tokens" in str(refused[0].error)
    finally:
        await client.shutdown()


async def test_a_trace_is_complete_after_shutdown(tmp_path: Path) -> None:
    client = await ProcessCoreClient.start(
        EngineConfig(trace_dir=str(tmp_path / "trace")), f"{engines.HERE}:paced"
    )
    config = EngineConfig()
    request = InputProcessor(config, client.info, ByteTokenizer()).process(
        "abc", SamplingParams(max_tokens=5), "mine"
    )
    client.add(request.children[0])
    finished = False
    while not finished:
        news = await asyncio.wait_for(client.get_outputs(), DEADLINE_S)
        finished = any(output.finish_reason is not None for output in news.outputs)
    await client.shutdown()
    steps = pq.read_table(tmp_path / "trace" / "steps.parquet").to_pylist()
    assert [row["decode_tokens"] + row["prefill_tokens"] for row in steps] == [3, 1, 1, 1, 1]
    events = pq.read_table(tmp_path / "trace" / "events.parquet").to_pylist()
    assert {(row["request_id"], row["core_id"]) for row in events} == {("mine", "mine#0")}


def test_a_front_end_imports_neither_torch_nor_pyarrow() -> None:
    code = (
        "import sys, engine.server.app, engine.frontend.async_llm; "
        "print(sorted({'torch', 'pyarrow', 'pandas', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
