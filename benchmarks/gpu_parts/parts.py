"""The parts of the benchmark in order of worth, each run in a process of its own.

A kernel that faults leaves its process without a device, and one that hangs never gives it back: either takes
its own part with it, and what that part had not found yet, but no other part.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.ceilings import measure_ceilings
from benchmarks.gpu_parts.checks import check_attention, check_elementwise, check_sampling
from benchmarks.gpu_parts.kernels import time_attention, time_others
from benchmarks.gpu_parts.shapes import FAKE_SHAPES, SHAPES
from benchmarks.gpu_parts.steps import measure_steps

Finding = tuple[str, Any]
"""Section of the record and what to add to it."""

OVERTIME_S = 15.0
"""Beyond the deadline, for a part that is about to end."""
KILL_S = 10.0
_PRELOAD = ["torch", "triton", "engine.kernels.triton.backend", "engine.executor.device.executor"]


@dataclass(frozen=True, slots=True)
class Part:
    """``limit_s``: longest; behind it the part is taken to hang."""

    name: str
    run: Callable[[Bench], Iterator[Finding]]
    limit_s: float


def all_parts(fake: bool) -> list[Part]:
    shapes = list(FAKE_SHAPES if fake else SHAPES)
    return [
        Part("ceilings", measure_ceilings, 120),
        Part("checks attention", check_attention, 120),
        Part("checks elementwise", check_elementwise, 60),
        Part("checks sampling", check_sampling, 60),
        *(Part(f"engine {name}", partial(measure_steps, name=name), 150) for name in shapes),
        *(Part(f"kernels {name}", partial(time_attention, name=name), 150) for name in shapes),
        Part("kernels others", time_others, 60),
    ]


def run_part(part: Part, bench: Bench) -> Iterator[Finding]:
    """What ``part`` finds, as it finds it; ``failed`` and a text when it did not come to its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)  # imported once; nothing there touches a device
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(part.run, bench, sender), daemon=True)
    process.start()
    sender.close()
    patience = 5.0 if bench.fake else 1.0  # the interpreter, on a machine that does other things
    limit = max(0.0, min(patience * part.limit_s, bench.seconds_left + OVERTIME_S))
    end = time.monotonic() + limit
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            section, found = receiver.recv()
            yield section, f"{part.name}: {found}" if section in ("failed", "notes") else found
        yield "failed", f"{part.name}: did not end in {limit:.0f} s"
    except EOFError:
        process.join(KILL_S)
        if process.exitcode:
            yield "failed", f"{part.name}: its process ended with exit code {process.exitcode}"
    finally:
        receiver.close()
        process.kill()
        process.join(KILL_S)


def _work(run: Callable[[Bench], Iterator[Finding]], bench: Bench, channel: Connection) -> None:
    try:
        with _launches(bench.fake):
            for finding in run(bench):
                channel.send(finding)
            bench.synchronize()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        first_line = (str(error).strip().splitlines() or [""])[0]
        channel.send(("failed", f"{type(error).__name__}: {first_line}"))
    for note in bench.notes:
        channel.send(("notes", note))
    channel.close()


def _launches(fake: bool) -> AbstractContextManager[None]:
    if not fake:
        return nullcontext()
    from engine.executor.device.fake import plain_launches

    return plain_launches()
