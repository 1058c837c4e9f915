"""The engine on the triton backend, as a user chooses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import InvalidInputError
from engine.executor.factory import create_executor
from tests.executor.plans import new, plan
from tests.executor.test_factory import config
from tests.helpers.tiny_model import VOCAB_SIZE, make_tiny_model
from tests.kernels_triton.cases import DEVICE


@pytest.fixture(autouse=True)
def _keep_thread_count():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def greedy(folder: Path, **fields: object) -> list[int]:
    """Six greedy tokens behind a prompt of eleven, the prompt in two chunks."""
    executor, info = create_executor(config(folder, **fields))
    assert info.attention_backend == fields.get("attention_backend", "reference")
    prompt = torch.randint(3, VOCAB_SIZE, (11,), generator=torch.Generator().manual_seed(5)).tolist()
    entering, done, output, step = [new("r", prompt, [7, 3, 12])], 0, [], 0
    try:
        while len(output) < 6:
            size = 8 if done == 0 else 3 if done == 8 else 1
            samples = ["r"] if done else []
            result = executor.execute(plan(step, {"r": (done, size)}, samples, new_requests=entering))
            output += result.sampled_token_ids.values()
            entering, done, step = [], done + size, step + 1
    finally:
        executor.shutdown()
    return output


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("LlamaForCausalLM", "float32"), ("Qwen2ForCausalLM", "float32"), ("LlamaForCausalLM", "float16")],
)
def test_greedy_tokens_are_the_references(architecture: str, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture)
    ours = greedy(folder, attention_backend="triton", device=DEVICE, max_model_len=18, dtype=dtype)
    assert ours == greedy(folder, max_model_len=18, dtype=dtype)
    assert len(set(ours)) > 1


def test_what_goes_with_the_triton_backend_and_what_does_not(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "LlamaForCausalLM")
    _, info = create_executor(
        config(folder, attention_backend="triton", device=DEVICE, max_model_len=10, kv_cache_dtype="fp8")
    )  # fmt: skip
    model = info.model_config
    elements = 2 * model["num_layers"] * model["num_kv_heads"] * model["head_size"]
    assert info.kv_cache_bytes == info.num_kv_blocks * info.block_size * elements  # a byte each
    with pytest.raises(InvalidInputError, match=r"kv_cache_dtype='fp8': auto without the triton backend"):
        create_executor(config(folder, kv_cache_dtype="fp8"))
    with pytest.raises(InvalidInputError, match=r"quantization='int8': none with the triton backend"):
        create_executor(
            config(folder, attention_backend="triton", device=DEVICE, max_model_len=18, quantization="int8")
        )
