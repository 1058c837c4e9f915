"""What watching costs, on a machine that is never quite quiet: each step beside its neighbours.

The real engine decodes 16 requests. Steps that follow each other within 0.1 s see the same machine, so a
watched step over an unwatched neighbour tells a tenth of a percent where whole runs differ by ten.

python -m benchmarks.paired_steps trace      steps recorded and not recorded in turns (ABBA)
python -m benchmarks.paired_steps control    the same, never recorded: what the method itself shows
python -m benchmarks.paired_steps telemetry  steps in which the poller takes a sample against the ones around
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from itertools import pairwise
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from benchmarks.traced_core import Switch, enter
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.factory import create_executor
from engine.trace.recorder import NullRecorder
from engine.trace.writer import TraceWriter
from workbench.collectors.cpu import CpuSampler

OUTPUT = 400
SETTLE = 4
"""Steps of a batch that are left out at its beginning: they prefill."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def decode(
    recorder: Switch, threads: int, seconds: float, record: bool
) -> tuple[list[Ints], list[list[bool]]]:
    """Decode batches of 16 requests until the time is up.

    Args:
        record: record two of four steps; else none.

    Returns:
        For each batch the stamps around its steps (ns) and which of the steps were marked for recording.
    """
    config = EngineConfig.create(num_threads=threads, enable_prefix_caching=False)
    executor, info = create_executor(config)
    config = config.model_copy(update={"max_model_len": info.max_model_len})
    core = EngineCore.create(config, executor, MonotonicClock(), recorder)
    stamps: list[Ints] = []
    watched: list[list[bool]] = []
    until, batch = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        enter(core, batch, OUTPUT)
        batch += 1
        times = [time.monotonic_ns()]
        marks: list[bool] = []
        while core.has_work():
            marks.append(len(marks) % 4 in (1, 2))
            recorder.enabled = record and marks[-1]
            core.step()
            times.append(time.monotonic_ns())
        stamps.append(np.array(times[SETTLE:], np.int64))
        watched.append(marks[SETTLE:])
    core.shutdown()
    return stamps, watched


def trace(threads: int, seconds: float, control: bool) -> dict[str, float]:
    """Recorded steps over their unrecorded neighbours. What the writer thread takes shows in both: its share
    of the CPU time is in :mod:`benchmarks.trace_cost`.
    """
    with tempfile.TemporaryDirectory() as folder:
        writer = None if control else TraceWriter(folder)
        switch = Switch(writer or NullRecorder())
        stamps, watched = decode(switch, threads, seconds, record=not control)
    ratios = []
    for times, marks in zip(stamps, watched, strict=True):
        took = np.log(np.diff(times))
        for i in range(1, len(took)):
            if marks[i] != marks[i - 1]:
                ratios.append(took[i] - took[i - 1] if marks[i] else took[i - 1] - took[i])
    return {
        "steps": float(sum(map(len, watched))),
        "step_ms": _middle_ms(stamps),
        **_summary("step", np.array(ratios)),
        "dropped": float(0 if writer is None else writer.num_dropped),
    }


def telemetry(threads: int, seconds: float) -> dict[str, float]:
    """Steps in which a sample was taken over the two steps around them that had none. ``itl``: the same
    spread over all steps.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    poller = context.Process(target=_poll, args=(os.getpid(), theirs))
    poller.start()
    ours.recv()  # it has imported, and samples
    stamps, _ = decode(Switch(NullRecorder()), threads, seconds, record=False)
    ours.send(None)
    spans = np.array(ours.recv(), np.int64).reshape(-1, 2)
    poller.join()
    ratios: list[float] = []
    steps = sampled_steps = 0
    for times in stamps:
        took = np.log(np.diff(times))
        ended = np.searchsorted(spans[:, 1], times[:-1], side="right")
        begun = np.searchsorted(spans[:, 0], times[1:], side="left")
        sampled = begun > ended
        steps += len(took)
        sampled_steps += int(sampled.sum())
        edges = np.flatnonzero(np.diff(sampled.astype(np.int8)))
        for before, last in pairwise(edges):
            # Steps before + 1 to last: one sample may lie across two of them.
            if sampled[before + 1] and last + 1 < len(took):
                inside = float(took[before + 1 : last + 1].mean())
                ratios.append(inside - float(took[before] + took[last + 1]) / 2)
    found = _summary("sampled_step", np.array(ratios))
    part = sampled_steps / steps
    return {"steps": float(steps), "step_ms": _middle_ms(stamps), "samples": float(len(ratios)),
            "sample_ms": float(np.median(spans[:, 1] - spans[:, 0]) / 1e6), **found,
            **{f"itl_{end}_percent": part * found[f"sampled_step_{end}_percent"]
               for end in ("change", "low", "high")}}  # fmt: skip


class _Timed(CpuSampler):
    """The poller of every run, with the times of its samples."""

    def __init__(self, pid: int) -> None:
        super().__init__(lambda: [pid])
        self.spans: list[tuple[int, int]] = []

    def _sample(self) -> None:
        begin = time.monotonic_ns()
        super()._sample()
        self.spans.append((begin, time.monotonic_ns()))


def _poll(pid: int, until: Connection) -> None:
    sampler = _Timed(pid)
    with sampler:
        until.send(None)
        until.recv()
    until.send(sampler.spans)


def _middle_ms(stamps: list[Ints]) -> float:
    return float(np.median(np.concatenate([np.diff(times) for times in stamps])) / 1e6)


def _summary(name: str, ratios: Floats, keep: float = 0.8) -> dict[str, float]:
    """Mean of the middle 80 % of the log ratios, with a bootstrap interval (95 %), in percent."""
    rng = np.random.default_rng(0)
    draws = [_trimmed(rng.choice(ratios, len(ratios)), keep) for _ in range(1000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return {
        f"{name}_change_percent": 100 * float(np.expm1(_trimmed(ratios, keep))),
        f"{name}_low_percent": 100 * float(np.expm1(low)),
        f"{name}_high_percent": 100 * float(np.expm1(high)),
    }


def _trimmed(values: Floats, keep: float) -> float:
    cut = int(len(values) * (1 - keep) / 2)
    return float(np.sort(values)[cut : len(values) - cut].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["trace", "control", "telemetry"])
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "telemetry":
        found = telemetry(arguments.threads, arguments.seconds)
    else:
        found = trace(arguments.threads, arguments.seconds, arguments.what == "control")
    print(json.dumps({key: round(value, 3) for key, value in found.items()}))


if __name__ == "__main__":
    main()
