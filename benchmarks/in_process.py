"""The engine in process, without HTTP: requests that arrive together, greedy, no two prompts alike.

    python -m benchmarks.in_process [--quantization int8] [--requests 1,4,16,32] [--rounds 3] [--json]

Each round runs every batch once, on prompts that it has not seen. To compare with an engine that runs in a
Python of its own, alternate this script with one that drives the other in the same way: one after the other,
since two engines that share the cores measure each other.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass

from engine import LLM, SamplingParams

_VOCABULARY = (100, 49_000)


@dataclass(frozen=True)
class Batch:
    """Medians over rounds."""

    requests: int
    seconds: float
    """From the first prompt in to the last token out."""
    output_tok_s: float


def run(llm: LLM, requests: int, inputs: int, outputs: int, rng: random.Random) -> float:
    prompts = [[rng.randrange(*_VOCABULARY) for _ in range(inputs)] for _ in range(requests)]
    params = SamplingParams(temperature=0.0, max_tokens=outputs, min_tokens=outputs, ignore_eos=True)
    begin = time.perf_counter()
    done = llm.generate(prompts, params)
    seconds = time.perf_counter() - begin
    short = [len(r.outputs[0].token_ids) for r in done if len(r.outputs[0].token_ids) != outputs]
    if short:
        raise RuntimeError(f"answers of {short} tokens, wanted {outputs}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--requests", default="1,4,16,32", help="sizes of the batches")
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        sizes = [int(size) for size in args.requests.split(",")]
    except ValueError:
        parser.error(f"--requests {args.requests!r}: numbers with commas between them")
    rng = random.Random(5)
    with LLM(args.model, dtype=args.dtype, quantization=args.quantization) as llm:
        run(llm, 2, 64, 8, rng)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(args.rounds):
            for size in sizes:
                times[size].append(run(llm, size, args.input_tokens, args.output_tokens, rng))
    batches = []
    for size, taken in times.items():
        seconds = statistics.median(taken)
        batches.append(Batch(size, seconds, size * args.output_tokens / seconds))
    if args.json:
        print(json.dumps({"quantization": args.quantization, "batches": [asdict(b) for b in batches]}))
        return
    for b in batches:
        print(f"{b.requests:3} requests: {b.output_tok_s:8.1f} output tok/s ({b.seconds:.3f} s)")


if __name__ == "__main__":
    main()
