"""The progress bar of ``model fetch``, on stderr: stage, bar, bytes, speed, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def stderr_progress(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """A ``progress(stage, done_bytes, total_bytes)`` that draws one bar per stage.

    Where stderr is no terminal only one line per finished stage is printed.
    """
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{name}: {stage}", total=total)
                if not console.is_terminal:
                    console.print(f"{name}: {stage} ({total / 1e6:.0f} MB)", highlight=False)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
