"""What share of a step passes outside the forward, from the step trace of a loaded server.

    python -m benchmarks.step_share [--concurrency 32] [--requests 96] [--config JSON] [--json]

Starts the server with ``trace_dir``, loads it over HTTP with a closed loop (256 tokens in, 64 out), reads
``steps.parquet``. Two kinds of step are listed: all of the load's, and those that only decode with every
request running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from benchmarks.versus import Case, model_of, own_server, run_case

PARTS = {
    "schedule": ("t_start", "t_schedule"),
    "prepare": ("t_schedule", "t_prepare"),
    "forward": ("t_prepare", "t_forward"),
    "sample": ("t_forward", "t_sample"),
    "output": ("t_sample", "t_end"),
}


@dataclass(frozen=True)
class Shares:
    """Of the summed time of ``steps`` steps."""

    kind: str
    steps: int
    step_ms: float
    """Mean, from ``t_start`` to ``t_end``."""
    parts: dict[str, float]
    """Share of each part of the step."""
    outside_forward: float
    between_steps: float
    """From ``t_end`` to the next step's ``t_start``, as a share of the step time: messages in and out."""


def shares(kind: str, steps: pd.DataFrame) -> Shares:
    total = float((steps["t_end"] - steps["t_start"]).sum())
    parts = {name: float((steps[end] - steps[begin]).sum()) / total for name, (begin, end) in PARTS.items()}
    gap = float((steps["next_start"] - steps["t_end"]).sum())
    return Shares(kind, len(steps), total / len(steps) / 1e6, parts, 1 - parts["forward"], gap / total)


def analyse(steps: pd.DataFrame, concurrency: int) -> list[Shares]:
    """Only steps that computed tokens, and not the last one, which no step follows."""
    steps = steps.sort_values("step_id")
    steps["next_start"] = steps["t_start"].shift(-1)
    steps = steps[steps["t_forward"].notna() & steps["next_start"].notna()]
    busy = steps[steps["num_running"] > concurrency // 2]
    decode = busy[(busy["num_prefill_reqs"] == 0) & (busy["num_decode_reqs"] == concurrency)]
    kinds = {"all steps under load": busy, f"decode steps of {concurrency} requests": decode}
    return [shares(kind, some) for kind, some in kinds.items() if len(some)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--config", default="{}", help="EngineConfig of the server, as JSON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    case = Case("load", args.requests, args.concurrency)
    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps({**json.loads(args.config), "trace_dir": folder})
        with own_server(config) as url:
            sample = asyncio.run(run_case(url, asyncio.run(model_of(url)), case, seed=0))
        found = analyse(pd.read_parquet(Path(folder) / "steps.parquet"), args.concurrency)
    if args.json:
        print(json.dumps({"load": asdict(sample), "steps": [asdict(s) for s in found]}))
        return
    print(f"{sample.output_tok_s:.0f} output tok/s, ITL p50 {sample.itl_p50:.1f} ms")
    for s in found:
        parts = ", ".join(f"{name} {share:.1%}" for name, share in s.parts.items())
        print(f"{s.kind}: {s.steps} steps of {s.step_ms:.2f} ms: {parts}")
        print(f"    outside the forward {s.outside_forward:.1%}; between steps another {s.between_steps:.1%}")


if __name__ == "__main__":
    main()
