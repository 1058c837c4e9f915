"""Tier 2, inside a revision: one run of the real engine in this fresh process, on the wall clock.

Three numbers, each the middle of the run's own repeats: time to first token and gap between tokens of single
requests (light load), and output tokens per second of a full batch (saturated). With ``trace`` the step trace
of the light part is summed up too, so that what was planted in a test can be verified.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import answer, prompt_of, read_specification  # beside this file


def main() -> None:
    from engine.frontend.llm import LLM
    from engine.sampling_params import SamplingParams

    specification = read_specification()
    light, full = specification["light"], specification["saturated"]
    with LLM(**specification["engine"]) as llm:
        vocab_size = min(30_000, llm.info.vocab_size)

        def params(output: int) -> Any:
            return SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)

        def batch(tag: str) -> list[list[int]]:
            return [prompt_of([[f"{tag}{i}", full["input"]]], vocab_size) for i in range(full["requests"])]

        llm.generate([prompt_of([["warm", light["input"]]], vocab_size)], params(4))
        llm.generate(batch("warm"), params(2))
        ttft, itl = [], []
        for number in range(light["requests"]):
            prompt = prompt_of([[f"{specification['seed']}/light{number}", light["input"]]], vocab_size)
            (output,) = llm.generate([prompt], params(light["output"]))
            timings: Any = output.outputs[0].timings
            ttft.append((timings.first_token_ns - timings.arrival_ns) / 1e6)
            itl.append((timings.last_token_ns - timings.first_token_ns) / 1e6 / (light["output"] - 1))
        rates = []
        for number in range(full["repeats"]):
            prompts = batch(f"{specification['seed']}/full{number}-")
            start = time.perf_counter()
            outputs = llm.generate(prompts, params(full["output"]))
            seconds = time.perf_counter() - start
            rates.append(sum(len(o.outputs[0].token_ids) for o in outputs) / seconds)
    answer(
        specification,
        metrics={"ttft_ms": median(ttft), "itl_ms": median(itl), "output_tok_s": median(rates)},
        repeats={"ttft_ms": ttft, "itl_ms": itl, "output_tok_s": rates},
    )


if __name__ == "__main__":
    main()
