from __future__ import annotations

from pathlib import Path

import pytest

from experiments.models import SweepResult
from reports.run_data import RunData
from reports.run_view import Tables
from reports.sweeps import load_sweep
from tests.reports.store_factory import write_store
from workbench.runstore import Run, RunStore


@pytest.fixture(scope="session")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with good, broken, hostile and swept runs. Tests only read it."""
    return write_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def sweep_dir(store_dir: Path) -> Path:
    return store_dir / "sweep-chunk"


@pytest.fixture(scope="session")
def sweep(sweep_dir: Path) -> SweepResult:
    return load_sweep(sweep_dir)


@pytest.fixture(scope="session")
def run_a(store_dir: Path) -> Run:
    return RunStore(store_dir).open("run-a")


@pytest.fixture(scope="session")
def data_a(run_a: Run) -> RunData:
    return RunData.of(run_a.path, run_a.manifest)


@pytest.fixture(scope="session")
def tables_a(data_a: RunData) -> Tables:
    return Tables.read(data_a)
