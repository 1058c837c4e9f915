"""What watching costs: the step trace, the telemetry poller, the timeline export.

python -m benchmarks.trace_cost micro      a row; what the core's own step grows by; drops at 500 steps/s
python -m benchmarks.trace_cost trace      real engine at concurrency 16, trace on against off, ABBA
python -m benchmarks.trace_cost control    the same, off on both sides: what the machine's noise does
python -m benchmarks.trace_cost telemetry  the same with the CPU poller (a process of its own) on against off
python -m benchmarks.trace_cost export     1 million events to Perfetto, with peak memory
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.traced_core import CONCURRENCY, FORWARD_S, core_steps, enter
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.factory import create_executor
from engine.trace.recorder import NullRecorder, TraceRecorder
from engine.trace.records import STEP_COLUMNS
from engine.trace.tables import STEPS
from engine.trace.writer import TraceWriter
from workbench.collectors.cpu import CpuSampler
from workbench.manifest import Manifest, TargetInfo
from workbench.records import CHUNKS, REQUESTS
from workbench.runstore import Run
from workbench.timeline.perfetto import export

OUTPUT = 48


def micro() -> dict[str, float]:
    """Median ns of what the step thread does for one step's row: five more clock readings, build, put."""
    tail = tuple("queue_empty" if kind == "string" else 1 for _, kind in STEP_COLUMNS[7:])
    now = MonotonicClock().now_ns
    with tempfile.TemporaryDirectory() as folder:
        trace = TraceWriter(folder)
        times = []
        for number in range(20_000):
            begin = time.perf_counter_ns()
            now(), now(), now(), now(), now()
            trace.record_step((number, 1, 2, 3, 4, 5, 6, *tail))
            times.append(time.perf_counter_ns() - begin)
            if number % 50 == 0:
                time.sleep(0.001)
        trace.close()
        steady = TraceWriter(Path(folder) / "steady")
        due = time.perf_counter()
        for number in range(2_500):  # 5 s at 500 steps/s, with 16 events each
            steady.record_step((number, 1, 2, 3, 4, 5, 6, *tail))
            for _ in range(16):
                steady.record_event((number, "external", "core", "scheduled", number, 1, 0, None))
            due += 0.002
            time.sleep(max(0.0, due - time.perf_counter()))
        steady.close()
        dropped = steady.num_dropped
    times.sort()
    warm, warm_added = core_steps(1_200, 0.0)
    cold, cold_added = core_steps(800, FORWARD_S)
    return {
        "core_step_us": warm,
        "core_step_added_us": warm_added,
        "cold_core_step_us": cold,
        "cold_core_step_added_us": cold_added,
        "cold_control_added_us": core_steps(800, FORWARD_S, record=False)[1],
        "median_us": times[len(times) // 2] / 1e3,
        "p99_us": times[int(0.99 * len(times))] / 1e3,
        "dropped_at_500_steps_s": dropped,
    }


class Rates(NamedTuple):
    """Output tokens per second, and per second of this process's CPU time (all its threads): the second is
    quiet on a machine that others use, too. ``itl``: median seconds of a decode step, which is the gap
    between two tokens of every request.
    """

    wall: float
    cpu: float
    itl: float


def throughput(core: EngineCore, seed: int, output: int = OUTPUT) -> Rates:
    """16 requests that run together."""
    enter(core, seed, output)
    begin, cpu = time.perf_counter(), time.process_time()
    stamps = [begin]
    while core.has_work():
        core.step()
        stamps.append(time.perf_counter())
    tokens = CONCURRENCY * output
    decodes = [b - a for a, b in pairwise(stamps[1:])]  # the first step prefills
    return Rates(
        tokens / (stamps[-1] - begin), tokens / (time.process_time() - cpu), statistics.median(decodes)
    )


class Extent(NamedTuple):
    """How much is measured: so many pairs of pairs, or what fits into the time."""

    pairs: int
    seconds: float


LEAST_PAIRS = 3
Make = Callable[[bool], AbstractContextManager[EngineCore]]


def compare(extent: Extent, make: Make) -> dict[str, float]:
    """ABBA; ``make(on)`` gives the core to measure."""
    found: dict[bool, list[Rates]] = {False: [], True: []}
    until = time.monotonic() + extent.seconds
    for pair in range(extent.pairs):
        if pair >= LEAST_PAIRS and time.monotonic() > until:
            break
        order = (False, True, True, False) if pair % 2 == 0 else (True, False, False, True)
        for place, watched in enumerate(order):
            with make(watched) as core:
                found[watched].append(throughput(core, 4 * pair + place))
    result: dict[str, float] = {
        "runs": len(found[True]),
        "off_tok_s": statistics.fmean(r.wall for r in found[False]),
        "off_itl_ms": 1e3 * statistics.median(r.itl for r in found[False]),
        "on_itl_ms": 1e3 * statistics.median(r.itl for r in found[True]),
    }
    for name in Rates._fields:
        ratios = [
            math.log(getattr(a, name) / getattr(b, name))
            for a, b in zip(found[True], found[False], strict=True)
        ]
        middle, error = statistics.fmean(ratios), 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
        result |= {
            f"{name}_change_percent": 100 * math.expm1(middle),
            f"{name}_low_percent": 100 * math.expm1(middle - error),
            f"{name}_high_percent": 100 * math.expm1(middle + error),
        }
    return result


def trace(extent: Extent, threads: int, control: bool = False) -> dict[str, float]:
    """The whole engine below the front end, with and without a writer; as a control, twice without."""
    config = EngineConfig.create(num_threads=threads, enable_prefix_caching=False)
    executor, info = create_executor(config)
    config = config.model_copy(update={"max_model_len": info.max_model_len})
    writer_cpu: list[float] = []
    all_cpu: list[float] = []

    @contextmanager
    def make(watched: bool) -> Iterator[EngineCore]:
        with tempfile.TemporaryDirectory() as folder:
            recorder: TraceRecorder = TraceWriter(folder) if watched and not control else NullRecorder()
            executor.reset()
            before = time.process_time()
            yield EngineCore.create(config, executor, MonotonicClock(), recorder)
            if isinstance(recorder, TraceWriter):
                all_cpu.append(time.process_time() - before)
                writer_cpu.append(time.clock_gettime(time.pthread_getcpuclockid(recorder._thread.ident or 0)))
            recorder.close()

    with make(False) as core:
        throughput(core, -1)  # warm
    result = compare(extent, make)
    # Exact whatever the neighbours do: the writer thread's own CPU time.
    return result | ({"writer_thread_cpu_percent": 100 * sum(writer_cpu) / sum(all_cpu)} if all_cpu else {})


def telemetry(extent: Extent, threads: int) -> dict[str, float]:
    """A poller in another process watches this one at its default rate, or nobody does."""
    config = EngineConfig.create(num_threads=threads, enable_prefix_caching=False)
    executor, info = create_executor(config)
    config = config.model_copy(update={"max_model_len": info.max_model_len})
    context = multiprocessing.get_context("spawn")

    @contextmanager
    def make(watched: bool) -> Iterator[EngineCore]:
        stop = context.Event()
        poller = context.Process(target=_poll, args=(os.getpid(), stop)) if watched else None
        if poller is not None:
            poller.start()
            time.sleep(2.5)  # it imports first
        executor.reset()
        yield EngineCore.create(config, executor, MonotonicClock(), NullRecorder())
        if poller is not None:
            stop.set()
            poller.join()

    with make(False) as core:
        throughput(core, -1)
    return compare(extent, make)


def _poll(pid: int, stop: object) -> None:
    with CpuSampler(lambda: [pid]):
        stop.wait()  # type: ignore[attr-defined]


def big_export(count: int = 1_000_000) -> dict[str, float]:
    """Mostly chunks, as in a long run: 2,000 requests, 20,000 steps with phases and counters. The export runs
    in a process of its own, so that its memory can be seen.
    """
    with tempfile.TemporaryDirectory() as folder:
        _big_run(Path(folder), count)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_export_there, (folder,))


def _export_there(folder: str) -> dict[str, float]:
    path, process, done = Path(folder), psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    manifest = Manifest(id="big", created="", target=TargetInfo(kind="attach"))
    events = export(Run(path, manifest), path / "trace.json")
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    return {
        "events": events,
        "seconds": seconds,
        "file_mb": (path / "trace.json").stat().st_size / 1e6,
        "memory_mb": (peak - before) / 1e6,
    }


def _big_run(path: Path, count: int) -> None:
    start = 10**12
    requests = []
    for i in range(2_000):
        sent = start + i * 30_000_000
        row = {
            "request_id": f"r{i}",
            "index": i,
            "phase": "measure",
            "group": "g",
            "status": "ok",
            "sent_ns": sent,
        }
        requests.append(row | {"first_token_ns": sent + 10**8, "last_token_ns": sent + 2 * 10**9})
    pq.write_table(pa.Table.from_pylist(requests, schema=REQUESTS), path / "requests.parquet")
    steps = []
    for i in range(20_000):
        row = dict.fromkeys(STEPS.schema.names, 1)
        row |= {"step_id": i, "admission_stop": "queue_empty", "num_preempted": 0}
        row |= {name: start + i * 3_000_000 + 500_000 * k for k, name in enumerate(STEPS.schema.names[1:7])}
        steps.append(row)
    pq.write_table(pa.Table.from_pylist(steps, schema=STEPS.schema), path / "steps.parquet")
    left = count - 20_000 * 9 - 2_000 * 3
    owner = np.arange(left) % 2_000
    chunks = {
        "request_id": pa.array([f"r{i}" for i in owner]),
        "recv_ns": pa.array(start + owner * 30_000_000 + 10**8 + np.arange(left) * 37),
        "kind": pa.array(["content"] * left),
        "n_tokens": pa.array(np.ones(left, np.int32)),
        "n_tokens_source": pa.array(["token_ids"] * left),
    }
    pq.write_table(pa.table(chunks, schema=CHUNKS), path / "chunks.parquet", row_group_size=65_536)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["micro", "trace", "control", "telemetry", "export"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no pair after this long")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    extent = Extent(arguments.pairs, arguments.seconds)
    measure: dict[str, Callable[[], dict[str, float]]] = {
        "micro": micro,
        "export": big_export,
        "trace": lambda: trace(extent, arguments.threads),
        "control": lambda: trace(extent, arguments.threads, control=True),
        "telemetry": lambda: telemetry(extent, arguments.threads),
    }
    found = measure[arguments.what]()
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


if __name__ == "__main__":
    main()
