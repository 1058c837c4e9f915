"""A forward's time by the device's own clock: read behind the tokens, never waited for, in its step's row."""

from __future__ import annotations

import pytest
import torch

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.device.fake import FakeRuntime, HiddenWaitError, to_device, to_host
from engine.executor.torch_executor import TorchExecutor
from engine.models.backend import ForwardBatch
from engine.trace.recorder import ListRecorder
from engine.trace.records import STEP_COLUMNS
from tests.executor.plans import SuccessorBackend, new, plan
from tests.scheduler.harness import make_request


class DeviceSuccessor(SuccessorBackend):
    """Computes on the fake device's memory, which is the host's."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        tensors = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
        plain = {name: to_host(t) if isinstance(t, torch.Tensor) else t for name, t in tensors.items()}
        return to_device(super().forward(ForwardBatch(**plain)))


@pytest.fixture
def executor() -> DeviceExecutor:
    settings = DeviceSettings(max_num_seqs=4, max_model_len=32, block_size=4, max_num_batched_tokens=16)
    return DeviceExecutor(FakeRuntime(), DeviceSuccessor(), 64, settings, clock=VirtualClock())


def test_time_of_the_forward_comes_with_the_tokens(executor):
    queued = executor.begin(plan(0, {"a": (0, 3)}, ["a"], new_requests=[new("a", [1, 2, 3], [9])]))
    assert queued.result.gpu_forward_ns is None
    assert executor.finish(queued).gpu_forward_ns == 3_000_000


def test_a_step_that_samples_nothing_is_not_waited_for(executor):
    chunk = executor.execute(plan(0, {"a": (0, 2)}, new_requests=[new("a", [1, 2, 3], [9])]))
    assert chunk.gpu_forward_ns is None


def test_the_fake_device_knows_a_timer_that_is_read_too_early():
    runtime = FakeRuntime()
    timer = runtime.start_timer()
    pinned = runtime.pinned(8)
    runtime.download(pinned, runtime.device_bytes(8))
    timer.stop()
    with pytest.raises(HiddenWaitError, match="timer"):
        timer.read_ns()
    runtime.record_event().synchronize()
    assert timer.read_ns() == runtime.forward_ns
    assert torch.equal(pinned, torch.zeros(8, dtype=torch.uint8))


def test_it_is_in_the_row_of_its_step_and_null_on_the_cpu(executor):
    rows = []
    on_cpu = TorchExecutor(SuccessorBackend(), 64, max_num_seqs=4, max_model_len=32, block_size=4)
    for one in (executor, on_cpu):
        trace = ListRecorder()
        config = EngineConfig.create(block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
        core = EngineCore.create(config, one, VirtualClock(), trace)
        core.add_request(make_request("a", 5, max_tokens=2))
        while core.has_work():
            core.step()
        place = [name for name, _ in STEP_COLUMNS].index("gpu_forward_ns")
        rows.append([row[place] for row in trace.steps])
    assert rows == [[3_000_000, 3_000_000], [None, None]]
