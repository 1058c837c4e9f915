"""Ranks as processes: same tokens, and no hang whichever of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError, ModelLoadError
from engine.executor.factory import create_executor
from engine.frontend.llm import LLM
from engine.parallel import wire
from engine.parallel.executor import TensorParallelExecutor
from engine.parallel.start import start_ranks
from engine.parallel.workers import Workers
from engine.sampling_params import SamplingParams
from tests.executor.plans import new, plan
from tests.helpers.tiny_model import make_tiny_model
from tests.server.real_server import Server, settle, start, stop

DEADLINE_S = 60.0
PROMPTS = [list(range(5, 5 + count)) for count in (1, 9, 40, 70, 23)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.0, top_k=20, seed=5, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.0, frequency_penalty=0.6, max_tokens=24, ignore_eos=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", "Qwen3ForCausalLM", max_position_embeddings=16_384
    )


def config(folder: Path, **fields: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "model": str(folder),
        "served_model_name": "tiny",
        "dtype": "float32",
        "attention_backend": "reference",
        "num_threads": 1,
        "tensor_parallel_size": 2,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,  # prompts in chunks
        "num_gpu_blocks_override": 10,  # not enough for all: preemption
        "check_invariants": True,
    }
    return EngineConfig.create(**{**defaults, **fields})


def generated(llm: LLM) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS)]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"one of {pids} still lives"
        time.sleep(0.02)


def test_two_ranks_give_the_tokens_of_one(folder: Path) -> None:
    with LLM(config(folder, tensor_parallel_size=1)) as one:
        expected = generated(one)
        assert one.stats.num_preemptions > 0
    with LLM(config(folder)) as two:
        assert generated(two) == expected
        assert generated(two) == expected  # prefix hits now
        assert two.stats.prefix_cache_hits > 0
        assert two.info.tensor_parallel_size == 2
        assert two.info.attention_backend == "reference"
        pids = [child.pid for child in psutil.Process().children() if "worker" in " ".join(child.cmdline())]
        assert len(pids) == 1
    wait_gone(pids)


def started(folder: Path, timeout_s: float = 5.0, **fields: object) -> tuple[TensorParallelExecutor, int]:
    executor, _ = start_ranks(config(folder, **fields), timeout_s)
    peers = executor._peers
    assert isinstance(peers, Workers)
    return executor, peers.pids[0]


def test_a_rank_that_stands_still_ends_the_step_within_the_timeout(folder: Path) -> None:
    executor, pid = started(folder, timeout_s=1.0)
    try:
        executor.execute(plan(0, {"a": (0, 3)}, ["a"], new_requests=[new("a", [4, 5, 6], [1])]))
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(EngineError, match="did not answer"):
            executor.execute(plan(1, {"a": (3, 1)}, ["a"]))
        assert time.monotonic() - began < DEADLINE_S
    finally:
        executor.shutdown()
    assert gone(pid)
    executor.shutdown()


async def test_a_killed_rank_ends_the_server(folder: Path) -> None:
    server = await start(config(folder, max_model_len=16_384, num_gpu_blocks_override=2100))
    try:
        (rank_1,) = server.engine_process.children()
        async with aiohttp.ClientSession(server.url) as http:
            body = {"prompt": "The quick", "max_tokens": 16_000, "ignore_eos": True}
            answer = asyncio.create_task(http.post("/v1/completions", json=body))
            await settle(http, running=1)
            rank_1.kill()
            response = await asyncio.wait_for(answer, DEADLINE_S)
            assert response.status == 500
            assert (await response.json())["error"]["code"] == "engine_dead"
        code, err = await server.exit()
        assert code == 1
        assert f"tensor-parallel rank 1 (process {rank_1.pid}) ended by signal 9" in err.splitlines()[-1]
    finally:
        await stop(server)


async def test_a_rank_that_ends_while_nothing_runs_ends_the_server(folder: Path) -> None:
    server: Server = await start(config(folder))
    try:
        (rank_1,) = server.engine_process.children()
        rank_1.kill()
        code, err = await server.exit()
        assert code == 1
        assert "tensor-parallel rank 1" in err.splitlines()[-1]
    finally:
        await stop(server)


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where started processes put their temporary files; a socket's path may not be long."""
    with tempfile.TemporaryDirectory(prefix="wb-") as path:
        monkeypatch.setenv("TMPDIR", path)
        yield Path(path)


async def test_ranks_end_with_the_engine_process_and_leave_nothing(folder: Path, short_tmp: Path) -> None:
    server = await start(config(folder))
    try:
        (rank_1,) = server.engine_process.children()
        assert len(list(short_tmp.glob("workbench-ranks-*"))) == 1
        server.engine_process.kill()
        wait_gone([rank_1.pid])
        assert list(short_tmp.glob("workbench-ranks-*")) == []
        assert (await server.exit())[0] == 1
    finally:
        await stop(server)


def test_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="tensor_parallel_size=3: the model's 4 attention heads"):
        create_executor(config(folder, tensor_parallel_size=3))
    with pytest.raises(InvalidInputError, match="attention_backend='cpu': reference with"):
        create_executor(config(folder, attention_backend="cpu"))


def test_a_rank_that_cannot_load_is_the_error(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((folder / "config.json").read_text())
    workers = Workers(config(broken), 2)
    try:
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            workers.receive(wire.Loaded, DEADLINE_S)
    finally:
        workers.stop()
    wait_gone(workers.pids)
