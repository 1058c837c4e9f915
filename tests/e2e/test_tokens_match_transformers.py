"""Greedy tokens equal transformers' in float32, whatever the batch, the chunk size and the prefix cache do.

The oracle is teacher-forced: one transformers forward over prompt + our output gives its choice at every
position. By induction, agreeing with it everywhere is the same as producing the same greedy text. Only a near
tie (top-2 logit gap below ``MAX_TIE_GAP``) may differ, because the order of float additions may; such cases
are listed in the test's output.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine import LLM, SamplingParams
from tests.e2e.prompts import PROMPTS

pytestmark = pytest.mark.e2e

NUM_TOKENS = 64
MAX_TIE_GAP = 1e-3
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def generate(llm: LLM, prompts: list[str]) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, output ids) of each prompt, all of them in one batch."""
    return [(out.prompt_token_ids, out.outputs[0].token_ids) for out in llm.generate(prompts, GREEDY)]


def divergences(oracle: Any, results: list[tuple[list[int], list[int]]]) -> list[tuple[int, int, float]]:
    """(prompt index, position, oracle's logit gap) of each first token that is not the oracle's choice."""
    import torch

    found = []
    for index, (prompt, output) in enumerate(results):
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        ours = torch.tensor(output)
        wrong = (logits.argmax(-1) != ours).nonzero()
        if len(wrong):
            at = int(wrong[0])
            gap = float(logits[at].max() - logits[at, ours[at]])
            found.append((index, at, gap))
    return found


def check(oracle: Any, results: list[tuple[list[int], list[int]]]) -> None:
    assert [len(output) for _, output in results] == [NUM_TOKENS] * len(results)
    found = divergences(oracle, results)
    for index, position, gap in found:
        print(f"near tie: prompt {index}, token {position}, oracle's logit gap {gap:.2e}")
    assert [case for case in found if case[2] >= MAX_TIE_GAP] == []


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache-on", "cache-off"])
@pytest.mark.parametrize("chunk_size", [16, 64, 512])
def test_batched(oracle: Any, chunk_size: int, prefix_caching: bool) -> None:
    llm = LLM(
        model="smollm2-135m",
        dtype="float32",
        max_num_batched_tokens=chunk_size,
        max_num_seqs=min(len(PROMPTS), chunk_size),
        max_model_len=1024,
        enable_prefix_caching=prefix_caching,
    )
    try:
        check(oracle, generate(llm, list(PROMPTS)))
        if prefix_caching and chunk_size == 64:  # the second pass starts from cached blocks
            check(oracle, generate(llm, list(PROMPTS)))
    finally:
        llm.shutdown()


def test_alone(oracle: Any) -> None:
    llm = LLM(model="smollm2-135m", dtype="float32", max_model_len=1024)
    try:
        check(oracle, [generate(llm, [prompt])[0] for prompt in PROMPTS])
    finally:
        llm.shutdown()
