"""``python -m workbench.load.worker``: plays a share of a schedule in a process of its own.

It speaks frames (:mod:`workbench.load.frames`) on its standard input and output, ends when its input
ends, and leaves
Ctrl-C to its parent.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from dataclasses import replace
from typing import IO

from workbench.load.frames import Finished, Job, Ready, Start, Tick, pack, read_blocking
from workbench.load.loops import loop_factory
from workbench.load.runner import LoadResult, play
from workbench.load.wire import open_session


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever prints by accident must not end up between frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    job = read_blocking(source)
    if not isinstance(job, Job):
        return 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    send(out, Ready())
    start = read_blocking(source)
    if not isinstance(start, Start):
        return 1
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        result = runner.run(_play(job, start.start_ns, source, out))
    send(out, Finished(result))
    return 0


async def _play(job: Job, start_ns: int, source: IO[bytes], out: IO[bytes]) -> LoadResult:
    plan = replace(job.plan, start_ns=start_ns)
    async with open_session(job.headers, job.deadlines) as session:
        task = asyncio.create_task(play(plan, session, lambda now: send(out, Tick(now))))
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # Once: the input stays readable, and a second cancellation would hit the clean-up.
            loop.remove_reader(source.fileno())
            task.cancel()

        # The next thing on the input is an order to stop, or its end: the parent is gone.
        loop.add_reader(source.fileno(), stop)
        try:
            return await task
        finally:
            loop.remove_reader(source.fileno())


def send(out: IO[bytes], message: object) -> None:
    out.write(pack(message))
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
