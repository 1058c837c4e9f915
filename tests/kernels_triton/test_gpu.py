"""On a CUDA device only (``pytest -m gpu``): real sizes, native fp8, and a forward captured in a graph.

Everything else in this folder runs on the device too when there is one, in place of the interpreter.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.kernels.triton.platform import interpreted
from tests.kernels_triton import test_decode_attention as decode
from tests.kernels_triton import test_prefill_attention as prefill
from tests.kernels_triton.cases import Layout
from tests.kernels_triton.models import random_weights, tiny_config
from tests.kernels_triton.test_backend import STEPS, batch_of, on_device, poisoned
from tests.kernels_triton.test_elementwise import codes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(interpreted() or not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONTEXTS = (1, 16, 17, 255, 1000, 4099)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("fp8", [False, True])
def test_decode_attention(dtype: torch.dtype, head_size: int, fp8: bool) -> None:
    layout = Layout(tuple((c, 1) for c in CONTEXTS), (8, 2), head_size, 16, dtype, fp8=fp8)
    for splits in (1, 8):
        decode.check(layout, splits, min_split=256)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("fp8", [False, True])
def test_prefill_attention(dtype: torch.dtype, head_size: int, fp8: bool) -> None:
    requests = ((1, 1), (300, 300), (1200, 100), (77, 1), (513, 512))
    prefill.check(Layout(requests, (8, 2), head_size, 16, dtype, fp8=fp8))


@pytest.mark.parametrize("window", [1, 100, 256])
def test_sliding_window(window: int) -> None:
    decode.check(Layout(tuple((c, 1) for c in CONTEXTS), (4, 1), 128, 16, torch.bfloat16, window=window), 8)
    prefill.check(Layout(((500, 120), (90, 90)), (4, 1), 128, 16, torch.bfloat16, window=window))


def test_native_e4m3_is_torchs() -> None:
    from engine.kernels.triton.platform import FP8_NATIVE, current_platform

    if current_platform().fp8 != FP8_NATIVE:
        pytest.skip("this device converts e4m3 in software")
    values = torch.linspace(-500, 500, 1 << 14)
    coded, back = codes(values, FP8_NATIVE)
    wanted = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(coded, wanted.view(torch.uint8))
    assert torch.equal(back, wanted.float())


def test_a_captured_decode_gives_what_a_launched_one_gives() -> None:
    from engine.kernels.triton.backend import TritonBackend

    config = tiny_config(16, 4, 2)
    backend = poisoned(TritonBackend(random_weights(config, torch.bfloat16), 64, 4, device="cuda"), 40)
    backend.forward(on_device(batch_of(STEPS[0])))
    batch = on_device(batch_of(STEPS[1], pads=1))
    wanted = backend.forward(batch).clone()
    static = dataclasses.replace(batch, input_ids=torch.zeros_like(batch.input_ids))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = backend.forward(static)
    static.input_ids.copy_(batch.input_ids)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(logits, wanted)
