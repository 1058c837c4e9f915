"""How fast the dashboard and the report are on big data: a run of 100,000 requests and 1 M chunks, and a
store of 2,000 runs. Both are made up in a temporary folder.

python -m benchmarks.dashboard [--browser] [--json]

Bars: the run opens in under 3 s on 2 cores, the store lists in under 2 s. "first" is with empty caches and
modules imported, "again" is the next opening; "browser" is from the navigation to the drawn charts in a real
Chromium, the application itself loaded anew, with a server that has shown another page before; "click" is
from a link inside the application, with what was cached of the store stale.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from playwright.sync_api import Page

from benchmarks.dashboard_store import read_metrics, write_big_run, write_many_runs

BIG = "big"
BARS = {"run page": 3.0, "runs page": 2.0}


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure_data(big: Path, many: Path) -> dict[str, float]:
    """Seconds of the parts below the pages."""
    from reports.html import run_html
    from reports.run_data import RunData
    from reports.run_view import Tables
    from workbench.runstore import RunStore

    run = RunStore(big).open(BIG)
    data = RunData.of(run.path, run.manifest)
    found = {"store: list of runs": timed(RunStore(many).list)}
    for name in ("requests", "gaps", "steps", "lives", "telemetry"):
        found[f"table: {name}"] = timed(getattr(data, name))
    found["tables of the run page"] = timed(lambda: Tables.read(data))
    tables = Tables.read(data)
    found["spans of a window"] = timed(lambda: tables.alive((100.0, 102.0)))
    found["HTML report"] = timed(lambda: run_html(run))
    return found


def measure_pages(big: Path, many: Path) -> dict[str, float]:
    """Seconds of whole pages, run by Streamlit without a browser."""
    import streamlit as st
    from streamlit.testing.v1 import AppTest

    logging.disable(logging.WARNING)  # of running without a server

    from reports.dashboard import store

    app = Path(store.__file__).with_name("app.py")

    def opened(view: str, **query: str) -> AppTest:
        page = AppTest.from_file(str(app), default_timeout=120)
        page.switch_page(f"views/{view}.py")
        for key, value in query.items():
            page.query_params[key] = value
        return page

    def show(page: AppTest) -> None:
        page.run()
        if page.exception:
            raise RuntimeError(page.exception[0].value)

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as empty:
        os.environ["WORKBENCH_RUNS"] = empty
        for view in ("runs", "run"):  # imports
            show(opened(view))
    for _ in range(3):
        st.cache_data.clear()
        st.cache_resource.clear()
        for key, root, view, query in (
            ("run page", big, "run", {"run": BIG}),
            ("run page, timeline", big, "run", {"run": BIG, "tab": "Timeline"}),
            ("runs page", many, "runs", {}),
        ):
            os.environ["WORKBENCH_RUNS"] = str(root)
            if key.endswith("timeline"):
                st.cache_data.clear()
                st.cache_resource.clear()
            for turn in ("first", "again"):
                page = opened(view, **query)
                found.setdefault(f"{key}, {turn}", []).append(timed(partial(show, page)))
    return {name: statistics.median(values) for name, values in found.items()}


def _touch(root: Path) -> None:
    """Make what is cached of the store stale."""
    for folder in root.iterdir():
        (folder / "manifest.json").touch()


def _click(page: Page, path: str, ready: str) -> None:
    """Move inside of the application, as readers do."""
    page.locator(f'[data-testid=stSidebarNavLink][href$="/{path}"]').click()
    page.wait_for_selector(ready, timeout=90_000)


@contextmanager
def server(root: Path) -> Iterator[str]:
    """``workbench dashboard`` on ``root``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import typer; from reports.commands import register; a = typer.Typer(); register(a); a()"
    command = [sys.executable, "-c", code, "dashboard", "--no-browser", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--runs-dir", str(root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(15)


def measure_browser(big: Path, many: Path) -> dict[str, float]:
    """Seconds from the navigation to the drawn page in Chromium."""
    from playwright.sync_api import sync_playwright

    found = {}

    def opened(page: Page, address: str, ready: str) -> float:
        return timed(lambda: (page.goto(address), page.wait_for_selector(ready, timeout=90_000)))

    chart, table = ".js-plotly-plot .main-svg", "[data-testid=stDataFrame] canvas"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=os.environ.get("WORKBENCH_CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        for key, root, warm, path, ready in (
            ("run page", big, "calculator", f"run?run={BIG}", chart),
            ("runs page", many, "calculator", "", table),
        ):
            with server(root) as home:
                page = chromium.new_page(viewport={"width": 1440, "height": 1000})
                page.goto(f"{home}/{warm}")
                page.wait_for_selector("h1", timeout=90_000)
                found[f"{key}, browser first"] = opened(page, f"{home}/{path}", ready)
                found[f"{key}, browser again"] = opened(page, f"{home}/{path}", ready)
                page.goto(f"{home}/{warm}")
                page.wait_for_selector("h1", timeout=90_000)
                _touch(root)
                found[f"{key}, browser click"] = timed(partial(_click, page, path.partition("?")[0], ready))
                page.close()
        chromium.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=10, help="streamed events of a request")
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--browser", action="store_true", help="also in a real Chromium")
    parser.add_argument("--keep", type=Path, help="make the stores here, and use those that are there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        big, many = root / "one", root / "many"
        if not big.exists():
            write_big_run(big, BIG, args.requests, args.tokens)
            write_many_runs(many, read_metrics(big / BIG), args.runs)
        found = measure_data(big, many) | measure_pages(big, many)
        if args.browser:
            found |= measure_browser(big, many)
    if args.json:
        print(json.dumps(found))
        return
    for name, seconds in found.items():
        bar = BARS.get(name.partition(",")[0])
        print(f"{name:28} {1000 * seconds:8.0f} ms" + (f"   (bar {1000 * bar:.0f})" if bar else ""))


if __name__ == "__main__":
    main()
