"""From a configuration to the device executor: which device, how much memory, what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.executor.device.choose import resolve_device
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.device.fake import FakeRuntime
from engine.executor.device.memory import device_room
from engine.executor.device.runtime import DeviceMemory
from engine.executor.factory import RankParts, create_executor
from engine.executor.kv_sizing import Room, num_kv_blocks
from engine.frontend.llm import LLM
from engine.models.loader import load_model
from engine.parallel.group import SOLO
from engine.parallel.shard import Shard
from tests.device.graph_safe_backend import GraphSafeBackend
from tests.differential.backends import tiny_weights
from tests.executor.plans import new, plan
from tests.helpers.tiny_model import make_tiny_model

needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="says what happens without a CUDA device"
)
CPU = torch.device("cpu")
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@needs_no_cuda
def test_no_cuda_device_is_one_line(folder: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        LLM(str(folder), device="cuda")
    line = str(caught.value)
    assert line.startswith("device='cuda': ")
    assert line.endswith("cpu is what can be used here")
    with pytest.raises(InvalidInputError, match="device='cuda'"):  # before ranks are started
        create_executor(EngineConfig.create(model=str(folder), device="cuda", tensor_parallel_size=2))
    config = f'{{"model": "{folder}", "device": "cuda"}}'
    command = [sys.executable, "-m", "engine.server", "--port", "0", "--config-json", config]
    server = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (server.returncode, server.stdout, server.stderr) == (2, "", f"error: {line}\n")


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device(EngineConfig(), rank=1) == torch.device("cuda", 1)
    assert resolve_device(EngineConfig(device="cpu")) == CPU
    assert resolve_device(EngineConfig(attention_backend="reference")) == CPU
    assert resolve_device(EngineConfig(quantization="int8")) == CPU
    with pytest.raises(InvalidInputError, match="tensor_parallel_size=4: at most 2"):
        resolve_device(EngineConfig(tensor_parallel_size=4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(EngineConfig()) == CPU


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_memory_utilization", 0.5),
        ("enforce_eager", True),
        ("cudagraph_capture_sizes", "1,2"),
        ("torch_compile", True),
        ("nvtx_ranges", True),
    ],
)
def test_settings_of_a_gpu_are_refused_on_the_cpu(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}=.*only with a CUDA device"):
        resolve_device(EngineConfig.create(device="cpu", **{field: value}))


def test_capture_sizes_from_text() -> None:
    assert EngineConfig.create(cudagraph_capture_sizes="8,1").cudagraph_capture_sizes == (8, 1)
    assert EngineConfig.create(cudagraph_capture_sizes=[2]).cudagraph_capture_sizes == (2,)
    for bad in ("", "1,x", "0", "999", []):
        with pytest.raises(InvalidInputError, match="cudagraph_capture_sizes="):
            EngineConfig.create(cudagraph_capture_sizes=bad)


@dataclass
class MeteredBackend(GraphSafeBackend):
    """Tells its runtime what a forward takes: 1 MiB a token, on top of 100 MiB of weights."""

    runtime: FakeRuntime

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__(tiny_weights(torch.float32), 96, 4)
        self.runtime = runtime

    def forward(self, batch):
        peak = (100 + len(batch.input_ids)) * MIB
        reading = self.runtime._reading
        self.runtime._reading = DeviceMemory(reading.total, reading.free, reading.reserved, peak)
        return super().forward(batch)


def test_the_kv_cache_gets_what_the_largest_step_leaves() -> None:
    """Of 1000 MiB, others hold 70 and torch's allocator 130; a step of 8 tokens peaks at 108 MiB, graphs of
    2 requests take 2 more.
    """
    runtime = FakeRuntime()
    runtime._reading = DeviceMemory(1000 * MIB, 800 * MIB, 130 * MIB, 100 * MIB)
    settings = DeviceSettings(2, 96, 4, 8, (1, 2))

    runtime.reset_peak = lambda: setattr(
        runtime, "_reading", DeviceMemory(1000 * MIB, 800 * MIB, 130 * MIB, 100 * MIB)
    )
    room = device_room(runtime, MeteredBackend(runtime), settings, 0.9)
    assert room == Room(
        (900 - 70 - 108 - 2) * MIB, (1000 - 70 - 108 - 2) * MIB, "gpu_memory_utilization", 0.9
    )
    eager = device_room(runtime, MeteredBackend(runtime), DeviceSettings(2, 96, 4, 8), 0.9)
    assert eager.default == (900 - 70 - 108) * MIB


def test_blocks_from_room(folder: Path) -> None:
    config = EngineConfig.create(model=str(folder), max_num_seqs=1000)
    room = Room(100 * MIB, 200 * MIB, "gpu_memory_utilization", 0.9)
    assert num_kv_blocks(config, 512, MIB, room) == 100
    with pytest.raises(InvalidInputError, match=r"gpu_memory_utilization=0\.9: 33 MiB left for the KV cache"):
        num_kv_blocks(config, 512, MIB, Room(10 * MIB, 200 * MIB, "gpu_memory_utilization", 0.9))
    wanted = config.model_copy(update={"kv_cache_memory_bytes": 300 * MIB})
    with pytest.raises(InvalidInputError, match="kv_cache_memory_bytes=314572800: at most"):
        num_kv_blocks(wanted, 512, MIB, room)


def test_a_rank_on_a_device(folder: Path) -> None:
    """All of the factory but the hardware: memory profile, graphs of the Triton backend, a step."""
    config = EngineConfig.create(
        model=str(folder), attention_backend="triton", dtype="float32", max_num_seqs=2, max_model_len=32,
        max_num_batched_tokens=4, cudagraph_capture_sizes="2",
    )  # fmt: skip
    runtime = FakeRuntime()
    parts = RankParts(config, Shard(), CPU, load_model(config), 1, runtime)
    parts.build_backend(SOLO)
    blocks = parts.size_kv()
    assert blocks == 2 * 2 + 1  # two requests of 32 tokens: there is room for more
    executor = parts.build_executor(blocks)
    assert isinstance(executor, DeviceExecutor)
    first = executor.execute(plan(0, {"a": (0, 3)}, ["a"], new_requests=[new("a", [4, 5, 6], [1])]))
    second = executor.execute(plan(1, {"a": (3, 1)}, ["a"]))
    assert len(first.sampled_token_ids) == len(second.sampled_token_ids) == 1
    assert [graph.replays for graph in runtime.graphs] == [1]
    eager = RankParts(
        config.model_copy(update={"enforce_eager": True}), Shard(), CPU, parts.model, 1, runtime
    )
    eager.build_backend(SOLO)
    assert eager._device_settings().capture_sizes == ()
    assert parts.info(blocks).device == "cpu"
