"""Self-contained HTML pages: one per sweep, run and gate. No network, everything from a bundle is escaped."""

from __future__ import annotations

from pathlib import Path

from reports.gate_page import gate_context
from reports.render import page
from reports.run_page import run_context
from reports.sweep_page import sweep_context
from reports.sweeps import load_sweep
from workbench.atomic import beside
from workbench.runstore import Run

REPORT_FILE = "report.html"


def write_sweep_report(sweep_dir: Path) -> Path:
    """Write ``report.html`` into the folder of a sweep; the runs are read from the folders beside it.

    Raises:
        RunCorruptError: ``sweep.json`` can't be read.
    """
    return write_text(sweep_dir / REPORT_FILE, sweep_html(sweep_dir))


def sweep_html(sweep_dir: Path) -> str:
    """The page of a sweep as text."""
    return page("sweep.html.j2", **sweep_context(sweep_dir, load_sweep(sweep_dir)))


def write_run_report(run: Run) -> Path:
    """Write ``report.html`` into the folder of ``run``; tables that can't be read are named on the page."""
    return write_text(run.path / REPORT_FILE, run_html(run))


def run_html(run: Run) -> str:
    """The page of a run as text."""
    return page("run.html.j2", **run_context(run))


def write_gate_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a gate.

    Raises:
        RunCorruptError: ``gate.json`` can't be read.
    """
    return write_text(folder / REPORT_FILE, gate_html(folder))


def gate_html(folder: Path) -> str:
    """The page of a gate as text."""
    return page("gate.html.j2", **gate_context(folder))


def write_text(path: Path, text: str) -> Path:
    """Write atomically, so that nobody ever opens half a report."""
    with beside(path) as place:
        place.write_text(text, encoding="utf-8")
    return path
