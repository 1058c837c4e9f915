"""From a configuration to a running executor: what is chosen, what is refused, and greedy tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.executor.factory import create_executor, usable_physical_cores
from engine.executor.kv_sizing import num_kv_blocks
from engine.executor.torch_executor import TorchExecutor
from engine.plan import StepPlan, StepResult
from tests.executor.plans import new, plan
from tests.helpers.tiny_model import ARCHITECTURES, VOCAB_SIZE, make_tiny_model

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _keep_thread_count():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config(folder: Path, **fields: object) -> EngineConfig:
    defaults: dict[str, object] = {
        "model": str(folder),
        "dtype": "float32",
        "attention_backend": "reference",
        "num_threads": 1,
        "num_gpu_blocks_override": 80,
        "block_size": 8,
        "max_num_seqs": 4,
    }
    return EngineConfig.create(**{**defaults, **fields})


def greedy(executor: TorchExecutor, prompt: list[int], num_tokens: int, chunk: int) -> list[int]:
    """Run one request to its end, ``chunk`` prompt tokens a step."""
    blocks = list(range(40, 60))
    entering, done, output = [new("r", prompt, blocks)], 0, []
    step = 0
    while len(output) < num_tokens:
        size = min(chunk, len(prompt) - done) if done < len(prompt) else 1
        samples = ["r"] if done + size >= len(prompt) else []
        result = executor.execute(plan(step, {"r": (done, size)}, samples, new_requests=entering))
        output += result.sampled_token_ids.values()
        entering, done, step = [], done + size, step + 1
    executor.execute(plan(step, {}, finished=["r"]))
    return output


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_equal_transformers_generate(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path, architecture)
    executor, info = create_executor(config(folder))
    assert info.architecture == architecture
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(11)
    for length, chunk in ((1, 1), (5, 2), (29, 8), (64, 64)):
        prompt = torch.randint(3, VOCAB_SIZE, (length,), generator=random).tolist()
        generated = oracle.generate(
            torch.tensor([prompt]),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert greedy(executor, prompt, 24, chunk) == generated[0, length:].tolist()


def test_info_says_what_is_in_force(tmp_path: Path) -> None:
    executor, info = create_executor(config(make_tiny_model(tmp_path), max_model_len=200))
    assert info.num_kv_blocks == executor.num_kv_blocks == 80
    # blocks, tokens, K and V, layers, KV heads, head size, bytes
    assert info.kv_cache_bytes == 80 * 8 * 2 * 2 * 2 * 16 * 4
    assert (info.dtype, info.attention_backend, info.attention_backend_reason) == (
        "float32",
        "reference",
        None,
    )
    assert (info.max_model_len, info.block_size, info.num_threads) == (200, 8, 1)
    assert (info.vocab_size, info.eos_token_ids) == (VOCAB_SIZE, [2])
    assert info.model_config["num_kv_heads"] == 2
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("max_model_len", [2, 200])
def test_the_first_step_is_behind_an_executor_that_knows_no_request(
    max_model_len: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[StepPlan] = []
    execute = TorchExecutor.execute

    def recorded(executor: TorchExecutor, step: StepPlan) -> StepResult:
        plans.append(step)
        return execute(executor, step)

    monkeypatch.setattr(TorchExecutor, "execute", recorded)
    folder = make_tiny_model(tmp_path)
    executor, _ = create_executor(config(folder, max_model_len=max_model_len, max_num_seqs=1))
    tokens = {2: [1, 1], 200: [64, 1]}[max_model_len]
    assert [p.total_num_scheduled_tokens for p in plans if p.num_scheduled_tokens] == tokens
    assert all(block == 0 for p in plans for request in p.new_requests for block in request.block_ids)
    first = plan(1, {"r": (0, 1)}, ["r"], new_requests=[new("r", [5], [1])])
    assert len(executor.execute(first).sampled_token_ids) == 1


def test_auto_falls_back_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "engine.kernels.cpu.backend", None)  # importing it raises ImportError
    folder = make_tiny_model(tmp_path)
    _, info = create_executor(config(folder, attention_backend="auto"))
    assert info.attention_backend == "reference"
    assert info.attention_backend_reason is not None
    assert info.attention_backend_reason in caplog.text
    with pytest.raises(ModelLoadError, match="attention_backend='cpu' isn't available here: "):
        create_executor(config(folder, attention_backend="cpu"))
    with pytest.raises(
        InvalidInputError, match="quantization='int8': none with attention_backend='reference'"
    ):
        create_executor(config(folder, attention_backend="auto", quantization="int8"))


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_float16_is_refused_by_the_native_kernels(backend: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        create_executor(config(folder, device="cpu", dtype="float16", attention_backend=backend))
    assert str(caught.value) == (
        "dtype='float16': float32 or bfloat16 with the native CPU kernels; "
        "attention_backend='reference' has float16"
    )


def test_float16_on_the_reference_backend(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    prompt = torch.randint(3, VOCAB_SIZE, (20,), generator=torch.Generator().manual_seed(2)).tolist()
    narrow, info = create_executor(config(folder, dtype="float16"))
    wide, _ = create_executor(config(folder))
    assert (info.dtype, info.kv_cache_bytes) == ("float16", 80 * 8 * 2 * 2 * 2 * 16 * 2)
    assert greedy(narrow, prompt, 8, 6) == greedy(wide, prompt, 8, 6)


def test_usable_cores_follow_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 5})
    assert usable_physical_cores() == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)))
    assert usable_physical_cores() == 8
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert usable_physical_cores() == 3


# KV sizing: 8 tokens a block, 1 MiB a block


def blocks(available: int, monkeypatch: pytest.MonkeyPatch, max_model_len: int = 64, **fields: object) -> int:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    made = EngineConfig.create(
        **{"block_size": 8, "max_num_seqs": 1000, "max_num_batched_tokens": 4096, **fields}
    )
    return num_kv_blocks(made, max_model_len, 1 << 20)


def test_default_is_a_gibibyte_but_no_more_than_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(16 * GIB, monkeypatch) == 1024
    assert blocks(GIB, monkeypatch) == 512


def test_no_more_blocks_than_could_ever_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(16 * GIB, monkeypatch, max_num_seqs=4) == 4 * 8 + 1
    assert blocks(16 * GIB, monkeypatch, max_num_seqs=4, max_model_len=65) == 4 * 9 + 1


def test_bytes_and_blocks_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(16 * GIB, monkeypatch, kv_cache_memory_bytes=3 * GIB) == 3072
    assert blocks(16 * GIB, monkeypatch, kv_cache_memory_bytes=GIB, num_gpu_blocks_override=50) == 50
    assert (
        blocks(16 * GIB, monkeypatch, num_gpu_blocks_override=9) == 9
    )  # one request of 64 tokens, and the null block


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"num_gpu_blocks_override": 8},
            "num_gpu_blocks_override=8: at least 9, so that one request of max_model_len=64 tokens fits "
            "(9 blocks of 8 tokens, null block included); or max_model_len of at most 56",
        ),
        (
            {"kv_cache_memory_bytes": 5 << 20},
            "kv_cache_memory_bytes=5242880: at least 9437184, so that one request",
        ),
        ({"kv_cache_memory_bytes": 17 * GIB}, "at most the free memory, 17179869184 bytes"),
        ({"num_gpu_blocks_override": 20_000}, "20000 MiB needed, 16384 MiB free: at most 16384"),
    ],
)
def test_sizes_that_cannot_work_say_what_to_change(
    fields: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        blocks(16 * GIB, monkeypatch, **fields)
    assert message in str(caught.value)
