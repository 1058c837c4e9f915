"""A mock server in a process of its own, and the command line in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main

WORKBENCH = (sys.executable, "-m", "workbench")


@dataclass
class Mock:
    url: str

    def log(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/mock/log", timeout=10) as answer:
            return json.load(answer)["arrivals"]


@pytest.fixture
def start_mock() -> Iterator[Callable[..., Mock]]:
    """``start_mock("--itl-ms", "5")`` → :class:`Mock`; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> Mock:
        command = [*WORKBENCH, "mock-server", "--port", "0", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        started.append(process)
        line = process.stdout.readline()
        assert "http://" in line
        return Mock(line.split()[-1])

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys) -> Callable[..., Done]:
    """Run ``workbench ARGS`` in this process; runs go to ``tmp_path/runs``."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("WORKBENCH_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, check: bool = True) -> Done:
        capsys.readouterr()
        code = main(list(arguments))
        shown = capsys.readouterr()
        if check:
            assert code == 0, shown.err
        return Done(code, shown.out, shown.err)

    return run


def environment(tmp_path: Path | None = None) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    extra = {} if tmp_path is None else {"WORKBENCH_RUNS": str(tmp_path / "runs")}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, **extra}
