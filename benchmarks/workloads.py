"""How long a workload takes to build, and what a window of a published trace becomes.

usage: python -m benchmarks.workloads [--mooncake FILE] [--azure FILE] [--start 600] [--end 660]

``prompts``  10,000 prompts of 4,000 random tokens, as bytes ready to send (bar: 10 s)
``load``     a whole trace file read into columns (bar: 1 s for 12,031 rows)
``window``   seconds ``--start`` to ``--end`` of it, inputs over 4,096 and outputs over 256 tokens truncated
             or dropped: how many rows each step touched (bar: the counts add up)
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from workbench.load.bodies import Features, prepare
from workloads import Arrivals, TraceSource, WorkloadSpec, build_all
from workloads.traces import read_trace

COUNT, TOKENS, BUILD_BAR_S = 10_000, 4_000, 10.0
LOAD_BAR_S, LOAD_ROWS = 1.0, 12_031
MAX_IN, MAX_OUT = 4096, 256
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mooncake", help="a Mooncake trace (JSON lines)")
    parser.add_argument("--azure", help="an Azure trace (CSV)")
    parser.add_argument("--start", type=float, default=600.0, help="seconds into the trace")
    parser.add_argument("--end", type=float, default=660.0, help="seconds into the trace")
    flags = parser.parse_args()
    rows = [prompts()]
    for format, path in (("mooncake", flags.mooncake), ("azure", flags.azure)):
        if path is not None:
            rows += trace(format, path, flags.start, flags.end)
    for row in rows:
        print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    return 0 if all(row["met"] for row in rows) else 1


def prompts() -> Row:
    spec = WorkloadSpec.create(
        {"arrivals": {"kind": "burst"}, "classes": [{"input_tokens": TOKENS, "output_tokens": 16}]}
    )
    begin = time.perf_counter()
    built = build_all(spec, seed=0, nonce="n", num_requests=COUNT)
    made_s = time.perf_counter() - begin
    prepared = prepare(
        built.requests,
        model="m",
        endpoint="completions",
        features=Features(),
        phase="measure",
        id_prefix="w",
        extra_body={},
    )
    whole_s = time.perf_counter() - begin
    size = sum(len(request.body) for request in prepared)
    return {
        "part": "prompts",
        "requests": len(prepared),
        "tokens": COUNT * TOKENS,
        "ids_s": made_s,
        "with_bodies_s": whole_s,
        "body_mb": size / 1e6,
        "met": whole_s < BUILD_BAR_S and len(prepared) == COUNT,
    }


def trace(format: Any, path: str, start_s: float, end_s: float) -> Iterator[Row]:
    begin = time.perf_counter()
    rows = read_trace(format, path)
    load_s = time.perf_counter() - begin
    yield {
        "part": "load",
        "format": format,
        "rows": len(rows),
        "load_s": load_s,
        "met": load_s / max(len(rows) / LOAD_ROWS, 1.0) < LOAD_BAR_S,
    }
    for policy in ("truncate", "drop"):
        source = TraceSource(
            format=format,
            path=path,
            start_s=start_s,
            end_s=end_s,
            max_input_tokens=MAX_IN,
            max_output_tokens=MAX_OUT,
            length_policy=policy,
        )
        spec = WorkloadSpec(name="trace", arrivals=Arrivals(kind="trace"), source=source)
        built = build_all(spec, seed=0, nonce="n")
        counts: dict[str, int] = built.notes["trace"]
        dropped = sum(n for name, n in counts.items() if name.startswith("dropped"))
        longest = max(r.num_prompt_tokens or 0 for r in built.requests)
        yield {
            "part": "window",
            "format": format,
            "policy": policy,
            **counts,
            "met": counts["rows_in_file"] - dropped == counts["rows_used"] == len(built.requests)
            and longest <= MAX_IN
            and max(r.max_tokens for r in built.requests) <= MAX_OUT,
        }


if __name__ == "__main__":
    sys.exit(main())
