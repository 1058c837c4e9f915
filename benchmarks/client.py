"""How exactly and how much the load generator sends, judged by the server's stamps and by known queues.

usage: python -m benchmarks.client [delivered|truth|queues|ceiling ...] [--seconds 10] [--json FILE]

``delivered``  constant and Poisson arrivals at 10, 100 and 1000 requests/s: count and gaps
               (Kolmogorov-Smirnov, p99 of the deviation from the schedule) by the stamps of the null server;
               the same schedule by 1, 2 and 4 workers
``truth``      ttft, icl and e2el against the truth server's own stamps
``queues``     D/D/1 and M/D/1: mean wait, anchored at the schedule, against the formula
``ceiling``    requests per second of short answers, events per second of streams

Every part prints its bar and whether it was met; the exit code is 1 when one was not. Both ends run on this
machine, so leave it alone meanwhile: ``others`` is the number of CPUs that everything else took during that
row, and above some hundredths a row says more about the machine than about the client. Answers in every
shape and split are in :mod:`benchmarks.corpus`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import stats

from workbench.benchspec import Deadlines
from workbench.load.bodies import Features, prepare
from workbench.load.loops import loop_factory
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.wire import open_session
from workbench.queues import batch_interval, deterministic_wait, lindley, pollaczek_khinchine_wait
from workbench.selftest import ITL_MS, drive, full_rate
from workloads import Arrivals, WorkloadRequest
from workloads.arrivals import offsets_ns

PARTS = ("delivered", "truth", "queues", "ceiling")
RATES = (10.0, 100.0, 1000.0)
GAPS_JUDGED = (10.0, 100.0)
"""Rates at which the gaps have a bar; at 1000/s only the count has one."""
_IDLE = 0.15
"""CPUs that others may take on an idle machine."""
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        help="before each part, wait up to so many seconds for an idle machine",
    )
    flags = parser.parse_args()
    runners: dict[str, Callable[[float], Iterator[Row]]] = {
        "delivered": delivered,
        "truth": truth,
        "queues": queues,
        "ceiling": ceiling,
    }
    rows: list[Row] = []
    for part in flags.parts or PARTS:
        generator = runners[part](flags.seconds)
        while True:
            idle_at_last(flags.wait)
            before = _cpu_s()
            found = next(generator, None)
            if found is None:
                break
            taken, own, wall_s = (b - a for a, b in zip(before, _cpu_s(), strict=True))
            row = {"part": part, **found, "others": round((taken - own) / wall_s, 3)}
            rows.append(row)
            print(" ".join(f"{k}={_shown(v)}" for k, v in row.items()), flush=True)
    if flags.json is not None:
        flags.json.write_text(json.dumps(rows, indent=1))
    missed = [row for row in rows if not row["met"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} bars met")
    return 1 if missed else 0


def delivered(seconds: float) -> Iterator[Row]:
    """Bar: count within 0.5 %; at 10 and 100/s Poisson gaps pass KS at 1 %, constant ones deviate at most
    2 ms at p99."""
    for kind in ("constant", "poisson"):
        for rate in RATES:
            schedule = _schedule(kind, rate, seconds)
            done = drive(schedule.tolist())
            arrived = np.sort(done.arrival_offsets_ns) / 1e9
            late_ms = (done.arrival_offsets_ns - schedule[: len(done.arrival_offsets_ns)]) / 1e6
            row: Row = {
                "kind": kind,
                "rate": rate,
                "planned": len(schedule),
                "arrived": len(arrived),
                "late_p50_ms": np.percentile(late_ms, 50),
                "late_p99_ms": np.percentile(late_ms, 99),
                "lag_p99_ms": np.percentile(done.lag_ms, 99),
                "cpu_percent": 100 * done.result.cpu_s / done.seconds,
                "workers": done.workers,
            }
            met = abs(len(arrived) - len(schedule)) <= 0.005 * len(schedule)
            gaps = np.diff(arrived)
            if kind == "poisson":
                row["ks_p"] = float(stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue)
                met &= rate not in GAPS_JUDGED or row["ks_p"] > 0.01
            else:
                row["gap_deviation_p99_ms"] = float(np.percentile(np.abs(gaps - 1 / rate), 99) * 1e3)
                met &= rate not in GAPS_JUDGED or row["gap_deviation_p99_ms"] <= 2.0
            yield {**row, "met": bool(met)}
    yield from _by_workers(seconds)


def _by_workers(seconds: float) -> Iterator[Row]:
    """Bar: the same requests at the same times, to the nanosecond, and delivered as well."""
    schedule = _schedule("poisson", 100.0, seconds)
    first: list[tuple[str, int]] | None = None
    for workers in (1, 2, 4):
        done = drive(schedule.tolist(), workers=workers)
        planned = [(r.request_id, (r.intended_ns or 0) - done.result.start_ns) for r in done.result.records]
        first = first or planned
        gaps = np.diff(np.sort(done.arrival_offsets_ns) / 1e9)
        row: Row = {
            "kind": "poisson",
            "rate": 100.0,
            "workers": done.workers,
            "arrived": len(done.arrivals),
            "same_schedule": planned == first,
            "ks_p": float(stats.kstest(gaps, "expon", args=(0, 1 / 100.0)).pvalue),
            "lag_p99_ms": float(np.percentile(done.lag_ms, 99)),
        }
        met = row["same_schedule"] and len(done.arrivals) == len(schedule) and row["ks_p"] > 0.01
        yield {**row, "met": bool(met)}


def _schedule(kind: str, rate: float, seconds: float) -> np.ndarray:
    count = round(rate * seconds * (1 if kind == "constant" else 1.5)) + 20
    offsets = offsets_ns(Arrivals(kind=kind), count, rate, np.random.default_rng(7))  # type: ignore[arg-type]
    if offsets is None:
        raise ValueError(f"{kind} arrivals have no schedule")
    return offsets[offsets < seconds * 1e9]


def truth(seconds: float) -> Iterator[Row]:
    """Bar: stamps within 1 ms of the server's at p50 and 3 ms at p99, tokens exact.

    A burst opens connections first and is not judged: to open one takes milliseconds that belong to ttft and
    that a server can't see.
    """
    rate, tokens, burst = 20.0, 20, 12
    schedule = np.concatenate([np.zeros(burst), 0.5e9 + _schedule("poisson", rate, seconds)])
    for chat in (False, True):
        with mock_server("--ttft-ms", "30", "--itl-ms", "7", "--tokens-per-event", "2") as url:
            result = _send(url, schedule, tokens, chat)
            log = mock_log(url)
        errors: dict[str, list[float]] = {"ttft": [], "icl": [], "e2el": []}
        exact = True
        judged = sorted(result.records, key=lambda record: record.index)[burst:]
        for record in judged:
            seen = log[record.request_id]
            got = [c.recv_ns for c in record.chunks if c.n_tokens]
            exact &= (
                record.output_tokens == tokens and len(got) == len(seen["sent_ns"]) and record.status == "ok"
            )
            if record.sent_ns is None or record.first_token_ns is None or record.last_token_ns is None:
                continue
            # The server's view: from the request's arrival to the writing of the event.
            first, last = seen["sent_ns"][0] - seen["arrived_ns"], seen["sent_ns"][-1] - seen["arrived_ns"]
            errors["ttft"].append((record.first_token_ns - record.sent_ns - first) / 1e6)
            errors["e2el"].append((record.last_token_ns - record.sent_ns - last) / 1e6)
            errors["icl"] += ((np.diff(got) - np.diff(seen["sent_ns"])) / 1e6).tolist()
        row: Row = {
            "endpoint": "chat" if chat else "completions",
            "requests": len(judged),
            "exact": exact,
        }
        met = exact
        for name, values in errors.items():
            p50, p99 = np.percentile(np.abs(values), [50, 99])
            row |= {f"{name}_off_p50_ms": p50, f"{name}_off_p99_ms": p99}
            met &= bool(p50 <= 1.0 and p99 <= 3.0)
        yield {**row, "met": met}


def queues(seconds: float) -> Iterator[Row]:
    """Bar: mean wait anchored at the schedule within its interval of the formula.

    The server's own service time is what it took, not what the script asked for: a sleep ends a little
    late. It is
    the median time between the ends of answers that followed each other without a pause.
    """
    count, rate, asked_s = 8, 10.0, 0.5
    with mock_server("--ttft-ms", str(asked_s * 1e3), "--itl-ms", "0", "--slots", "1") as url:
        result = _send(url, np.arange(count) * round(1e9 / rate), 1, False)
    waits = _waits(result, asked_s)
    formula = deterministic_wait(count, rate, asked_s)
    yield {
        "queue": "D/D/1",
        "wait_mean_s": float(waits.mean()),
        "formula_s": formula,
        "sent_anchored_s": float(np.mean([r.first_token_ns - r.sent_ns for r in result.records])) / 1e9,
        "met": abs(float(waits.mean()) - formula) <= 0.01 * formula,
    }
    rate, asked_s = 40.0, 0.015
    schedule = _schedule("poisson", rate, max(3 * seconds, 30.0))
    with mock_server("--ttft-ms", str(asked_s * 1e3), "--itl-ms", "0", "--slots", "1") as url:
        result = _send(url, schedule, 1, False)
        log = mock_log(url)
    service_s = _service(log)
    waits = _waits(result, service_s)
    low, high = batch_interval(waits)
    formula = pollaczek_khinchine_wait(rate, service_s)
    yield {
        "queue": "M/D/1",
        "requests": len(schedule),
        "service_ms": service_s * 1e3,
        "wait_mean_ms": float(waits.mean()) * 1e3,
        "interval_ms": [low * 1e3, high * 1e3],
        "formula_ms": formula * 1e3,
        "this_schedule_ms": float(lindley(schedule / 1e9, service_s).mean()) * 1e3,
        "met": low <= formula <= high,
    }


def _waits(result: LoadResult, service_s: float) -> np.ndarray:
    stamps = [(r.first_token_ns, r.intended_ns) for r in result.records]
    return np.array([(first - due) / 1e9 - service_s for first, due in stamps if first and due])


def _service(log: dict[str, Row]) -> float:
    """Seconds of service: ends that follow each other while somebody waits."""
    rows = sorted(log.values(), key=lambda row: row["sent_ns"][0])
    busy = [
        (b["sent_ns"][0] - a["sent_ns"][0]) / 1e9
        for a, b in pairwise(rows)
        if b["arrived_ns"] < a["sent_ns"][0]
    ]
    return float(np.mean(busy))


def ceiling(seconds: float) -> Iterator[Row]:
    """Bar: 1,000 requests/s of short answers and 20,000 streamed events/s, dispatch lag p99 under 10 ms."""
    for rate, tokens, itl_ms, bar in (
        (1000.0, 1, 0.0, 1000.0),
        (2000.0, 1, 0.0, None),
        (200.0, 100, ITL_MS, 20_000.0),
        (300.0, 100, ITL_MS, None),
    ):
        for workers in (1, 2):
            done = drive(
                _schedule("constant", rate, seconds).tolist(), tokens=tokens, itl_ms=itl_ms, workers=workers
            )
            lag = float(np.percentile(done.lag_ms, 99))
            reached = full_rate(done) if itl_ms else done.ok / done.seconds
            row: Row = {
                "requests_s": rate,
                "events_s_asked": rate * tokens,
                "reached_s": reached,
                "ok": done.ok,
                "lag_p50_ms": float(np.percentile(done.lag_ms, 50)),
                "lag_p99_ms": lag,
                "cpu_percent": 100 * done.result.cpu_s / done.seconds,
                "workers": workers,
            }
            enough = bar is None or reached >= 0.98 * bar
            yield {**row, "bar": bar, "met": bar is None or (enough and lag < 10.0)}


@contextmanager
def mock_server(*flags: str) -> Iterator[str]:
    """Base URL of ``workbench mock-server`` in a process of its own."""
    code = "import sys; from workbench.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "mock-server", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(10)


def _send(url: str, schedule: np.ndarray, tokens: int, chat: bool) -> LoadResult:
    prompt = np.arange(1, 9, dtype=np.int32)
    requests = [
        WorkloadRequest(i, int(at), "client", tokens, prompt_token_ids=prompt, num_prompt_tokens=8)
        for i, at in enumerate(schedule)
    ]
    prepared = prepare(
        requests,
        model="mock",
        endpoint="chat" if chat else "completions",
        features=Features(),
        phase="measure",
        id_prefix="c",
        extra_body={},
    )
    path = "/v1/chat/completions" if chat else "/v1/completions"

    async def go() -> LoadResult:
        async with open_session({}, Deadlines()) as session:
            return await play(LoadPlan(prepared, url + path), session)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(go())


def mock_log(url: str) -> dict[str, Row]:
    with urllib.request.urlopen(f"{url}/mock/log", timeout=30) as answer:
        return {row["request_id"]: row for row in json.load(answer)["arrivals"]}


def _cpu_s() -> tuple[float, float, float]:
    """CPU seconds spent by this machine, by this program with its ended children, and the time."""
    times, own = psutil.cpu_times(), os.times()
    idle = times.idle + times.iowait
    return sum(times[:8]) - idle, sum(own[:4]), time.monotonic()


def others_cpu() -> float:
    """CPUs that everything on this machine takes while this program sleeps."""
    psutil.cpu_percent(percpu=True)
    time.sleep(0.3)
    return round(sum(psutil.cpu_percent(percpu=True)) / 100, 2)


def idle_at_last(wait_s: float) -> float:
    """CPUs taken by others now; waits until they are few, at most ``wait_s``."""
    deadline = time.monotonic() + wait_s
    taken = others_cpu()
    while taken > _IDLE and time.monotonic() < deadline:
        time.sleep(1.0)
        taken = max(others_cpu(), others_cpu())
    return taken


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
