"""Progress of a sweep on a terminal: one line a finished run, a bar with elapsed and remaining time below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from experiments.design import level_text
from experiments.models import Cell


class LiveProgress:
    """Refreshes once a second: drawing takes no time from the two cores that are measured."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[done]} runs"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            refresh_per_second=1,
            transient=True,
        )
        self._task: TaskID | None = None
        self._done = 0

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def planned(self, folder: Path, cells: Sequence[Cell]) -> None:
        self._console.print(f"sweep {folder}", soft_wrap=True)
        self._task = self._progress.add_task("calibrating", total=None, done=0, left="")

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{text}[/dim]")

    def cell_started(self, cell: Cell, remaining_s: float | None) -> None:
        if self._task is None:
            return
        where = "fresh seeds" if cell.phase == "confirm" else f"block {cell.block}"
        self._progress.update(self._task, description=f"{where} · {level_text(cell.level)}", left="")
        if remaining_s is not None:
            # A bar of time: of the planned runs, a budget may hold only some.
            elapsed = self._progress.tasks[0].elapsed or 0.0
            left = f"about {_clock(remaining_s)} left"
            self._progress.update(self._task, completed=elapsed, total=elapsed + remaining_s, left=left)

    def cell_finished(self, cell: Cell) -> None:
        self._done += 1
        if self._task is not None:
            self._progress.update(self._task, done=self._done)
        where = f"{'confirm' if cell.phase == 'confirm' else 'block'} {cell.block:>2}"
        copy = f" ({'AB'[cell.baseline_copy]})" if cell.baseline_copy is not None else ""
        head = f"{where}  {level_text(cell.level):>6}{copy:<4} {cell.state:<6}"
        if cell.state == "DONE":
            self._console.print(f"{head} {_numbers(cell)}  {cell.seconds:.1f} s", soft_wrap=True)
        else:
            self._console.print(f"[yellow]{head}{cell.reason}[/yellow]")


def _numbers(cell: Cell) -> str:
    """The headline metrics of a run on one short line."""

    def show(name: str, pattern: str = "{:.1f}") -> str:
        value = cell.metrics.get(name)
        return "-" if value is None else pattern.format(value)

    return (
        f"ttft {show('ttft_p50', '{:.0f}')}  itl {show('itl_p50')}/{show('itl_p99')}  "
        f"{show('output_tok_s')} tok/s  goodput {show('goodput_ratio', '{:.0%}')}"
    )


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
