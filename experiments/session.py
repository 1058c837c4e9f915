"""A sweep on this machine: the real runner, the live display, and the report at the end."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from experiments.bench_cell import BenchRunner
from experiments.live import LiveProgress
from experiments.models import SweepResult
from experiments.schedule import SWEEP_FILE, check_fingerprint, read_schedule
from experiments.spec import SweepSpec
from experiments.sweep import Sweep, new_sweep
from experiments.trials import open_database
from experiments.views import question_text, stderr_console
from workbench.atomic import write_json
from workbench.manifest import git_info, machine_info, tool_version
from workbench.runstore import RunStore

REPORTERS = "workbench.sweep_reporters"
"""Entry-point group: each value writes a report of a sweep, ``(sweep_dir: Path) -> Path``."""


def start_sweep(spec: SweepSpec, runs_dir: Path | None) -> SweepResult:
    """Run a new sweep and write its report.

    Raises:
        InvalidInputError: the run store or the study's database can't be written.
    """
    store = RunStore(runs_dir)
    if spec.storage is not None:
        open_database(spec.storage)
    folder = new_sweep(spec, store.root, fingerprint())
    return _run(folder, spec, store, None)


def resume_sweep(name: str, budget_s: float | None, runs_dir: Path | None) -> SweepResult:
    """Go on with a sweep that was cut.

    Raises:
        InvalidInputError: there is no such sweep, or code, tool or machine have changed since it was started.
    """
    store = RunStore(runs_dir)
    folder = store.root / name if (store.root / name).is_dir() else Path(name)
    stored = read_schedule(folder)
    check_fingerprint(stored, fingerprint())
    return _run(folder, stored.spec, RunStore(folder.parent), budget_s)


def _run(folder: Path, spec: SweepSpec, store: RunStore, budget_s: float | None) -> SweepResult:
    console = stderr_console()
    console.print(question_text(spec))
    runner = BenchRunner(spec, store, folder.name)
    with LiveProgress(console) as live:
        sweep = Sweep(folder, runner, live, probe=runner.probe, budget_s=budget_s)
        result = sweep.run()
    return write_reports(folder, result, console.print)


def write_reports(folder: Path, result: SweepResult, say: Callable[[str], Any]) -> SweepResult:
    """Have every installed reporter write its page; the record then names the first.

    Reporters are found by entry point, because reports may import experiments and never the other way round.
    A reporter that fails costs its page, with a line that says so, not the sweep.
    """
    written: list[Path] = []
    for entry in entry_points(group=REPORTERS):
        try:
            written.append(entry.load()(folder))
        except Exception as error:
            say(f"report {entry.name} could not be written: {type(error).__name__}: {error}")
    if not written:
        return result
    named = result.model_copy(update={"report": str(written[0])})
    write_json(folder / SWEEP_FILE, named.model_dump(mode="json"))
    return named


def fingerprint() -> dict[str, Any]:
    """Facts outside the question that decide a measurement."""
    git, machine = git_info() or {}, machine_info()
    return {
        "git_commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        "tool_version": tool_version(),
        "cpu": machine.get("cpu"),
        "cores": machine.get("cores"),
        "memory_bytes": machine.get("memory_bytes"),
        "torch": machine.get("torch"),
    }
