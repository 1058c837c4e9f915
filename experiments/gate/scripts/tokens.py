"""Tier 0, inside a revision: the tokens that the real engine gives for pinned requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import answer, prompt_of, read_specification  # beside this file


def main() -> None:
    from engine.frontend.llm import LLM
    from engine.sampling_params import SamplingParams

    specification = read_specification()
    cases: dict[str, Any] = {}
    for group in specification["groups"]:
        with LLM(**{**specification["engine"], **group["engine"]}) as llm:
            vocab_size = min(30_000, llm.info.vocab_size)
            prompts = [prompt_of(case["prompt"], vocab_size) for case in group["cases"]]
            params = [SamplingParams(**case["params"]) for case in group["cases"]]
            outputs = llm.generate(prompts, params)
        for case, output in zip(group["cases"], outputs, strict=True):
            completion = output.outputs[0]
            cases[f"{group['name']}/{case['name']}"] = {
                "token_ids": list(completion.token_ids),
                "finish_reason": None if completion.finish_reason is None else completion.finish_reason.name,
                "error": output.error,
            }
    answer(specification, cases=cases)


if __name__ == "__main__":
    main()
