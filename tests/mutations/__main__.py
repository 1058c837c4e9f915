"""``python -m tests.mutations``: does a test fail for every planted bug? Exit 1 if one survives.

Each mutation is applied to a copy of the tree, and the tests run on that copy until one fails. Before
that they run on an unchanged copy (number 0): what fails there would prove nothing. It takes about
twenty minutes, so CI does not run it; the table in ``docs/testing.md`` is its output.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import track

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SUITES = (
    *("tests/kv", "tests/scheduler", "tests/core", "tests/sampling", "tests/executor", "tests/frontend"),
    *("tests/server", "tests/soak"),
)
SCENARIOS = 150
DEADLINE_S = 600
CONTROL = 0


@contextmanager
def tree_copy() -> Iterator[Path]:
    """A copy of the working tree that may be broken."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignore = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, tree, ignore=ignore)
        yield tree


def apply(mutation: Mutation, tree: Path) -> None:
    path = tree / mutation.path
    source = path.read_text()
    if source.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.path}: the text to replace stands there {source.count(mutation.old)} times"
        )
    path.write_text(source.replace(mutation.old, mutation.new))


def first_failure(tree: Path) -> str | None:
    """Name of the first failing test on the tree; None: the bug survives."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    for suite in SUITES:
        command = [
            sys.executable,
            "-m",
            "pytest",
            suite,
            "-x",
            "-q",
            "-m",
            "not e2e",
            "-p",
            "no:cacheprovider",
        ]
        run = subprocess.run(
            [*command, "--no-header", "--timeout=120"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        if run.returncode not in (0, 5):
            failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"{suite}: exit {run.returncode}"
    run = subprocess.run(
        [sys.executable, "-m", "tests.differential", "--scenarios", str(SCENARIOS)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return "tests/differential" if run.returncode else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", type=int, help="number of one mutation; 0: the unchanged tree")
    only = parser.parse_args().only
    if only in (None, CONTROL):
        with tree_copy() as tree:
            failure = first_failure(tree)
        if failure is not None:
            print(f"without any bug {failure} fails")
            return 1
        print("without any bug every test passes", flush=True)
    chosen = [(i, m) for i, m in enumerate(MUTATIONS, 1) if only in (None, i)]
    survivors = 0
    for number, mutation in track(chosen, "mutations"):
        with tree_copy() as tree:
            apply(mutation, tree)
            caught_by = first_failure(tree)
        survivors += caught_by is None
        shown = f"`{caught_by}`" if caught_by else "**survives**"
        print(f"| {number} | {mutation.name} | `{mutation.path}` | {shown} |", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs are caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
