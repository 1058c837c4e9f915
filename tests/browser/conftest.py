from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.reports.store_factory import write_store
from tests.reports.study_factory import write_capacity, write_findings, write_gate, write_self_test

CHROMIUM = os.environ.get("WORKBENCH_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_START_S = 90


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of asyncio's in other tests
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: ``WORKBENCH_SCREENSHOTS`` to keep them, else a temporary folder."""
    kept = os.environ.get("WORKBENCH_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browsed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_store(tmp_path_factory.mktemp("browsed"))
    write_capacity(root, runs=["run-a", "run-b", None, None, None])
    write_gate(root, "gate-1", day=1)
    write_gate(root, "gate-2", slower=0.2, day=2)
    write_self_test(root)
    write_findings(root / "run-a")
    return root


@pytest.fixture(scope="session")
def dashboard(browsed_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of ``workbench dashboard`` on the synthetic store, in a process of its own."""
    with serving(browsed_store, tmp_path_factory.mktemp("dashboard")) as home:
        yield home


@contextmanager
def serving(store: Path, logs: Path) -> Iterator[str]:
    """``workbench dashboard`` on ``store`` in a process of its own; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import typer; from reports.commands import register; a = typer.Typer(); register(a); a()"
    command = [sys.executable, "-c", code, "dashboard", "--no-browser", "--port", str(port)]
    log = logs / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen([*command, "--runs-dir", str(store)], stdout=out, stderr=subprocess.STDOUT)
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()  # a background job ignores SIGINT, and so do its children
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(15)


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"the dashboard ended with {server.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the dashboard did not answer within {_START_S} s:\n{log.read_text()}")
