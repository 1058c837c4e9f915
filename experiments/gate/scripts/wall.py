"""Tier 2, inside a revision: the real engine in this fresh process, on the wall clock, turn by turn.

Three numbers a turn at a time: time to first token and gap between tokens of single requests (light load),
then output tokens per second of a full batch (saturated). The process of the other side takes its turn on the
same requests just before or just after.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from baton import Baton  # beside this file
from common import answer, prompt_of, read_specification


def main() -> None:
    from engine.frontend.llm import LLM
    from engine.sampling_params import SamplingParams

    specification, baton = read_specification(), Baton()
    light, full = specification["light"], specification["saturated"]
    with LLM(**specification["engine"]) as llm:
        vocab_size = min(30_000, llm.info.vocab_size)

        def params(output: int) -> Any:
            return SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)

        def batch(tag: str) -> list[list[int]]:
            return [prompt_of([[f"{tag}{i}", full["input"]]], vocab_size) for i in range(full["requests"])]

        llm.generate([prompt_of([["warm", light["input"]]], vocab_size)], params(4))
        llm.generate(batch("warm"), params(2))
        baton.pass_on()
        ttft, itl, rates = [], [], []
        for number in range(light["requests"]):
            prompt = prompt_of([[f"{specification['seed']}/light{number}", light["input"]]], vocab_size)
            baton.wait()
            (output,) = llm.generate([prompt], params(light["output"]))
            baton.pass_on()
            timings: Any = output.outputs[0].timings
            ttft.append((timings.first_token_ns - timings.arrival_ns) / 1e6)
            itl.append((timings.last_token_ns - timings.first_token_ns) / 1e6 / (light["output"] - 1))
        for number in range(full["repeats"]):
            prompts = batch(f"{specification['seed']}/full{number}-")
            baton.wait()
            start = time.perf_counter()
            outputs = llm.generate(prompts, params(full["output"]))
            seconds = time.perf_counter() - start
            baton.pass_on()
            rates.append(sum(len(o.outputs[0].token_ids) for o in outputs) / seconds)
    answer(specification, turns={"ttft_ms": ttft, "itl_ms": itl, "output_tok_s": rates})


if __name__ == "__main__":
    main()
