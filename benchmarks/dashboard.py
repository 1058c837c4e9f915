"""How fast the dashboard and the report are on big data: a run of 100,000 requests and 1 M chunks, and a
store of 2,000 runs. Both are made up in a temporary folder.

python -m benchmarks.dashboard [--browser] [--json]

Bars: the run opens in under 3 s on 2 cores, the store lists in under 2 s. "first" is with empty caches and
modules imported, "again" is the next opening; "browser" is from the navigation in a real Chromium to the
summary and the first chart, "interactive" to that chart by plotly. "cold": a browser that has nothing cached;
"again": a new tab of it, the median of three; both with a server that has shown another page before. "click"
is from a link inside the application, after one run of the store was written anew. "floor" is what Streamlit
itself takes in that browser: a page with a title, with a plotly chart of three points, with a data frame of
three rows.
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
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, Playwright

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
    """Make what is cached of the store stale, as a run that was written meanwhile does."""
    (min(root.iterdir()) / "manifest.json").touch()


def _click(page: Page, path: str, ready: str) -> None:
    """Move inside of the application, as readers do."""
    page.locator(f'[data-testid=stSidebarNavLink][href$="/{path}"]').click()
    page.locator(ready).first.wait_for(timeout=90_000)


@contextmanager
def _served(command: Callable[[int], list[str]]) -> Iterator[str]:
    """Address of the Streamlit server that ``command`` (given a port) starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def server(root: Path) -> AbstractContextManager[str]:
    """``workbench dashboard`` on ``root``."""
    code = "import typer; from reports.commands import register; a = typer.Typer(); register(a); a()"
    start = [sys.executable, "-c", code, "dashboard", "--no-browser", "--runs-dir", str(root), "--port"]
    return _served(lambda port: [*start, str(port)])


def streamlit(script: Path) -> AbstractContextManager[str]:
    """``streamlit run`` with what ``workbench dashboard`` sets of what matters here."""
    start = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless", "true"]
    start += ["--server.address", "127.0.0.1", "--server.fileWatcherType", "none"]
    start += ["--browser.gatherUsageStats", "false", "--server.port"]
    return _served(lambda port: [*start, str(port)])


CHART, STILL, TABLE = ".js-plotly-plot .main-svg", "img.still", "[data-testid=stDataFrame] canvas"
FIRST_CHART = f"{STILL}, {CHART}"
FLOORS = {
    "floor: title": ("", "h1"),
    "floor: one chart": (
        "import plotly.graph_objects as go\nst.plotly_chart(go.Figure(go.Scatter(x=[1, 2, 3], y=[1, 3, 2])))",
        CHART,
    ),
    "floor: one data frame": ("st.dataframe({'a': [1, 2, 3]})", TABLE),
}
_NEW_TABS = 3


@contextmanager
def browser(playwright: Playwright) -> Iterator[BrowserContext]:
    """Chromium with nothing cached, and a cache on disk as a reader's has."""
    with tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=os.environ.get("WORKBENCH_CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            viewport={"width": 1440, "height": 1000},
        )
        yield context
        context.close()


def opened(context: BrowserContext, address: str, *ready: str) -> list[float]:
    """Seconds from the navigation in a new tab until each of ``ready`` can be seen."""
    page = context.new_page()
    begin = time.perf_counter()
    page.goto(address, wait_until="commit")
    found = []
    for selector in ready:
        page.locator(selector).first.wait_for(timeout=90_000)
        found.append(time.perf_counter() - begin)
    page.close()
    return found


def opened_again(context: BrowserContext, address: str, *ready: str) -> list[float]:
    """``opened``, the middle of some new tabs one after the other."""
    turns = [opened(context, address, *ready) for _ in range(_NEW_TABS)]
    return [statistics.median(times) for times in zip(*turns, strict=True)]


def _show_another_page(playwright: Playwright, home: str) -> None:
    """Let the server import what it needs, with a browser that is not the measured one."""
    with browser(playwright) as other:
        opened(other, f"{home}/calculator", "h1")


def measure_browser(big: Path, many: Path) -> dict[str, float]:
    """Seconds from the navigation until a reader sees what was asked for, in Chromium."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        for key, (body, ready) in FLOORS.items():
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder) / "page.py"
                script.write_text(f"import streamlit as st\nst.title('A page')\n{body}\n", encoding="utf-8")
                with streamlit(script) as home:
                    with browser(playwright) as other:
                        opened(other, home, "h1")
                    with browser(playwright) as context:
                        found[f"{key}, browser cold"] = opened(context, home, ready)[0]
                        found[f"{key}, browser again"] = opened_again(context, home, ready)[0]
        for key, root, path, ready in (
            ("run page", big, f"run?run={BIG}", FIRST_CHART),
            ("runs page", many, "", TABLE),
        ):
            with server(root) as home:
                _show_another_page(playwright, home)
                with browser(playwright) as context:
                    waited = (ready, CHART) if ready == FIRST_CHART else (ready,)
                    for turn, look in (("cold", opened), ("again", opened_again)):
                        times = look(context, f"{home}/{path}", *waited)
                        found[f"{key}, browser {turn}"] = times[0]
                        if len(times) > 1:
                            found[f"{key}, interactive {turn}"] = times[1]
                    page = context.new_page()
                    page.goto(f"{home}/calculator")
                    page.wait_for_selector("h1", timeout=90_000)
                    _touch(root)
                    place = path.partition("?")[0]
                    found[f"{key}, browser click"] = timed(partial(_click, page, place, ready))
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
        bar = None if "interactive" in name else BARS.get(name.partition(",")[0])
        print(f"{name:28} {1000 * seconds:8.0f} ms" + (f"   (bar {1000 * bar:.0f})" if bar else ""))


if __name__ == "__main__":
    main()
