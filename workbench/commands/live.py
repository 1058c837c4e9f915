"""The table that ``bench`` shows while it runs."""

from __future__ import annotations

import time
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from workbench.load.progress import BenchProgress

_REFRESH_PER_SECOND = 2
"""Drawing costs time of the cores that are measured."""
_COLUMNS = ("done", "in flight", "failed", "requests/s", "tok/s", "recent ttft p50", "elapsed", "left")


class LiveTable:
    """One row of figures and a bar; gone when the run is."""

    def __init__(self, console: Console, enabled: bool) -> None:
        self._enabled = enabled
        self._console = console
        self._noted = False
        self._now = BenchProgress(phase="starting")
        self._since = time.monotonic()
        self._live = Live(
            console=console,
            get_renderable=self._table,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> LiveTable:
        if self._enabled:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._live.stop()

    def show(self, now: BenchProgress) -> None:
        """The run's callback: only keeps what the next drawing shows."""
        if now.phase != self._now.phase:
            self._since = time.monotonic()
        self._now = now
        if now.note and not self._enabled and not self._noted:
            # Nothing is drawn here, and silence would look like a hang.
            self._noted = True
            self._console.print(now.note, style="dim", soft_wrap=True)

    def _table(self) -> Table:
        return live_table(self._now, time.monotonic() - self._since)


def live_table(now: BenchProgress, phase_s: float) -> Table:
    """``phase_s``: for phases that have no load, and so no time of their own."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(now.phase)
    if not now.planned:
        table.add_row(f"{clock(phase_s)}  {now.note}".rstrip())
        return table
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    table.add_row(ProgressBar(total=now.planned, completed=now.done, width=20), *live_cells(now))
    return table


def live_cells(now: BenchProgress) -> tuple[str, ...]:
    """The figures of one row, in the order of the columns; empty where nothing is known yet."""
    busy = now.elapsed_s > 0
    recent = now.recent_ttft_ms
    return (
        f"{now.done}/{now.planned}",
        str(now.in_flight),
        str(now.failed or ""),
        f"{now.ok / now.elapsed_s:.3g}" if busy and now.ok else "",
        f"{now.tokens / now.elapsed_s:.0f}" if busy and now.tokens else "",
        f"{median(recent):.0f} ms" if recent else "",
        clock(now.elapsed_s),
        "" if now.eta_s is None else clock(now.eta_s),
    )


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
