"""Stamps and token counts for every answer of the SSE corpus, split at every byte.

usage: python -m benchmarks.corpus [--rate 150] [--pause-ms 3] [--every 1] [--json FILE]

Each request gets one answer of ``tests/workbench/sse_corpus.py`` in two pieces, cut at one byte, with a
pause between them. The truth server records when it wrote each piece; which piece completes which event is
known from the corpus. Judged: ttft, icl and e2el of the client against the server's own stamps (bar: 1 ms at
p50, 3 ms at p99) and the token count, the status and the error class of every request (bar: all exact).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.client import mock_log, mock_server
from tests.workbench.sse_corpus import CORPUS, Answer
from workbench.benchspec import Deadlines
from workbench.load.bodies import PreparedRequest
from workbench.load.loops import loop_factory
from workbench.load.record import RequestRecord
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.wire import open_session

P50_MS, P99_MS = 1.0, 3.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    answer: Answer
    cut: int


@dataclass(slots=True)
class Errors:
    """Client's minus server's, ms."""

    ttft: list[float] = field(default_factory=list)
    icl: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What was not exact."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=150.0, help="requests per second")
    parser.add_argument("--pause-ms", type=float, default=3.0, help="between the two pieces")
    parser.add_argument("--every", type=int, default=1, help="split at every so many bytes")
    parser.add_argument("--json", type=Path, help="write the figures here")
    flags = parser.parse_args()
    cases = [
        Case(name, answer, cut)
        for name, answer in CORPUS.items()
        for cut in range(1, max(len(answer.data), 2), flags.every)
    ]
    # Neighbours in time are not neighbours in the corpus: a slow moment is spread over all of it.
    cases = [cases[i] for i in np.random.default_rng(0).permutation(len(cases))]
    with mock_server() as url:
        result = _send(url, cases, flags.rate, flags.pause_ms)
        log = mock_log(url)
    found = Errors()
    for case, record in zip(cases, result.records, strict=True):
        _judge(case, record, log[record.request_id], found)
    row: dict[str, Any] = {"answers": len(CORPUS), "requests": len(cases), "not_exact": len(found.wrong)}
    met = not found.wrong
    for name in ("ttft", "icl", "e2el"):
        p50, p99 = np.percentile(np.abs(getattr(found, name)), [50, 99])
        row |= {f"{name}_off_p50_ms": float(p50), f"{name}_off_p99_ms": float(p99)}
        met &= bool(p50 <= P50_MS and p99 <= P99_MS)
    row["met"] = met
    print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    for line in found.wrong[:10]:
        print(line)
    if flags.json is not None:
        flags.json.write_text(json.dumps(row, indent=1))
    return 0 if met else 1


def _send(url: str, cases: Sequence[Case], rate: float, pause_ms: float) -> LoadResult:
    requests = [
        PreparedRequest(
            request_id=f"c{i}",
            index=i,
            phase="measure",
            group=case.name,
            offset_ns=round(i * 1e9 / rate),
            max_tokens=1,
            num_prompt_tokens=1,
            body=json.dumps(
                {
                    "model": "mock",
                    "prompt": [1],
                    "stream": True,
                    "mock": {
                        "raw": case.answer.data.decode(),
                        "cuts": [case.cut],
                        "cut_pause_ms": pause_ms,
                    },
                }
            ).encode(),
        )
        for i, case in enumerate(cases)
    ]

    async def go() -> LoadResult:
        async with open_session({}, Deadlines()) as session:
            await play(LoadPlan(requests[:20], f"{url}/v1/completions"), session)
            return await play(LoadPlan(requests, f"{url}/v1/completions"), session)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(go())


def _judge(case: Case, record: RequestRecord, seen: dict[str, Any], found: Errors) -> None:
    answer = case.answer
    outcome = (record.status, record.error_class, record.output_tokens)
    wanted = (answer.status, answer.error_class, answer.tokens)
    counts = [c.n_tokens or 0 for c in record.chunks]
    if outcome != wanted or counts != [n for _, _, n in answer.events()]:
        found.wrong.append(f"{case.name} cut at {case.cut}: {outcome} {counts}, not {wanted}")
        return
    written: list[int] = seen["sent_ns"]
    # Only what a piece completes has a stamp of the server's; the end of the stream has none.
    at = [written[0 if needed <= case.cut else 1] for needed, _, n in answer.events() if n and needed]
    got = [c.recv_ns for c in record.chunks if c.n_tokens][: len(at)]
    if not at or record.sent_ns is None:
        return
    arrived: int = seen["arrived_ns"]
    found.ttft.append((got[0] - record.sent_ns - (at[0] - arrived)) / 1e6)
    found.e2el.append((got[-1] - record.sent_ns - (at[-1] - arrived)) / 1e6)
    found.icl += ((np.diff(got) - np.diff(at)) / 1e6).tolist()


if __name__ == "__main__":
    sys.exit(main())
