"""On a CUDA device (``pytest -m gpu``): the device executor on the real runtime, held against the CPU."""

from __future__ import annotations

import pytest
import torch

from engine.executor.device.cuda_runtime import CudaRuntime
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.torch_executor import TorchExecutor
from engine.models.dense import ReferenceBackend
from engine.sampling_params import SamplingParams
from tests.device.machine import BLOCK_SIZE, NUM_BLOCKS
from tests.device.test_executor import CUT, SAMPLED, life, queued_tokens, tokens_of
from tests.differential.backends import tiny_weights
from tests.differential.scenario import MAX_MODEL_LEN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GREEDY = SamplingParams(temperature=0.0)


def on_gpu(sizes: tuple[int, ...]) -> DeviceExecutor:
    from engine.kernels.triton.backend import TritonBackend

    backend = TritonBackend(
        tiny_weights(torch.float32), MAX_MODEL_LEN, BLOCK_SIZE, device="cuda", max_num_seqs=4
    )
    settings = DeviceSettings(4, MAX_MODEL_LEN, BLOCK_SIZE, 64, sizes)
    runtime = CudaRuntime(torch.device("cuda", 0), ranges=True)
    return DeviceExecutor(runtime, backend, NUM_BLOCKS, settings)


def on_cpu() -> TorchExecutor:
    backend = ReferenceBackend(tiny_weights(torch.float32), MAX_MODEL_LEN, BLOCK_SIZE)
    return TorchExecutor(backend, NUM_BLOCKS, 4, MAX_MODEL_LEN, BLOCK_SIZE)


@pytest.mark.parametrize("sizes", [(), (1, 2, 4)])
@pytest.mark.parametrize("params", [[GREEDY] * 3, [SAMPLED, CUT, GREEDY]])
def test_tokens_are_those_of_the_cpu(sizes: tuple[int, ...], params: list[SamplingParams]) -> None:
    expected = tokens_of(on_cpu(), life(params))
    assert queued_tokens(on_gpu(sizes), life(params)) == expected


def test_a_step_is_begun_without_a_wait() -> None:
    executor = on_gpu((1, 2, 4))
    steps = life([GREEDY, SAMPLED, GREEDY])
    executor.execute(steps[0])
    executor.execute(steps[1])  # whatever is compiled is compiled now
    torch.cuda.set_sync_debug_mode("error")
    try:
        begun = [executor.begin(step) for step in steps[2:4]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [len(executor.finish(step).sampled_token_ids) for step in begun] == [3, 3]
