"""Same seed and prompt, same tokens: alone, in a batch of 32, in chunks, preempted. Native kernels.

With bfloat16 this also says that a row's arithmetic doesn't depend on how many rows are computed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine import LLM, SamplingParams
from tests.e2e.prompts import PROMPTS

pytestmark = pytest.mark.e2e

NUM_TOKENS = 20
WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "presence_penalty": 0.5},
    {"temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.2},
)
OURS = [
    (
        PROMPTS[index],
        SamplingParams(seed=100 + index, max_tokens=NUM_TOKENS, ignore_eos=True, **WISHES[i % 4]),
    )
    for i, index in enumerate((0, 2, 7, 9, 17, 19))
]
NEIGHBOURS = [
    (PROMPTS[i % 20], SamplingParams(temperature=1.0, max_tokens=10 + i % 7, ignore_eos=True))
    for i in range(26)
]


@contextmanager
def engine(dtype: str, **config: Any) -> Iterator[LLM]:
    llm = LLM(model="smollm2-135m", dtype=dtype, max_model_len=320, attention_backend="cpu", **config)
    with llm:
        yield llm


def run(llm: LLM, requests: list[tuple[str, SamplingParams]]) -> list[list[int]]:
    prompts, params = zip(*requests, strict=True)
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), list(params))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_tokens_depend_on_seed_and_prompt_alone(dtype: str) -> None:
    with engine(dtype, enable_prefix_caching=False) as llm:
        alone = [run(llm, [request])[0] for request in OURS]
        together = run(llm, OURS + NEIGHBOURS)
        assert together[: len(OURS)] == alone
    with engine(dtype, max_num_batched_tokens=16, max_num_seqs=8) as llm:
        assert run(llm, OURS) == alone
        assert run(llm, OURS) == alone  # and from the prefix cache
    with engine(dtype, num_gpu_blocks_override=22, async_scheduling=True) as llm:
        crowded = run(llm, NEIGHBOURS + OURS)
        assert llm.stats.num_preemptions > 5
    assert crowded[len(NEIGHBOURS) :] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(OURS)
