"""Runs a spec for the command line: live line, calibration where the workload asks for it, tables, exit
code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from workbench.bench import BenchSpec, run_bench
from workbench.calibrate import PROBE_CONCURRENCY, measure_capacity
from workbench.commands.display import make_console, summary_view
from workbench.commands.live import LiveTable
from workbench.runstore import Run, RunStore

EXIT_NOTHING_SERVED = 1
EXIT_INTERRUPTED = 130


def run_and_show(spec: BenchSpec, store: RunStore, *, live: bool) -> tuple[Run, int]:
    """Run ``spec``, show everything on stderr; returns the run and the exit code."""
    console = make_console(stderr=True)
    with terminated_is_interrupted(), LiveTable(console, enabled=live and console.is_terminal) as line:
        spec = _calibrated(spec, store, console, line)
        run = run_bench(spec, store, progress=line.show)
    console.print(summary_view(run))
    console.print(f"run {run.path}", soft_wrap=True)
    if run.manifest.status == "interrupted":
        console.print("interrupted: the run holds what was measured until then", style="yellow")
        return run, EXIT_INTERRUPTED
    ok = ((run.metrics() or {}).get("counts") or {}).get("ok")
    if run.manifest.status == "failed":
        console.print(f"error: {run.manifest.error}", style="red", soft_wrap=True)
    return run, 0 if ok and run.manifest.status == "complete" else EXIT_NOTHING_SERVED


def _calibrated(spec: BenchSpec, store: RunStore, console: Console, line: LiveTable) -> BenchSpec:
    """Give the spec a rate when its arrivals need one and nobody named it."""
    arrivals = spec.workload.arrivals
    if (
        not arrivals.open_rate
        or spec.rate is not None
        or arrivals.rate is not None
        or arrivals.utilisation is None
    ):
        return spec
    capacity = measure_capacity(spec, store, progress=line.show)
    rate = float(f"{capacity.request_s * arrivals.utilisation:.3g}")
    console.print(
        f"rate {rate:g} requests/s: {arrivals.utilisation:.0%} of the {capacity.request_s:.3g}/s "
        f"that {PROBE_CONCURRENCY} at a time were served (run {capacity.run}); fix it with --request-rate",
        soft_wrap=True,
    )
    return spec.model_copy(update={"rate": rate})


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: the server is stopped and what was measured is kept."""

    def interrupt(_number: int, _frame: object) -> None:
        # By way of SIGINT, so that a running event loop handles it as it handles Ctrl-C.
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
