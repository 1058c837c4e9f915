"""Exported reports in a real browser: opened from a file with the network off, every figure drawn, text from
a bundle stays text, and axe finds no serious accessibility violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page

from reports.html import write_gate_report, write_run_report, write_sweep_report
from tests.browser.watched import PATIENCE_MS, Watched
from tests.reports.gate_factory import write_gate
from workbench.runstore import RunStore

pytestmark = pytest.mark.browser
FIGURES = {"sweep": 4, "run": 10, "hostile": 10, "gate": 2}
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def reports(browsed_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    store = RunStore(browsed_store)
    gates = tmp_path_factory.mktemp("gates")
    write_gate(gates / "gate-1", hostile=False)
    return {
        "sweep": write_sweep_report(browsed_store / "sweep-chunk"),
        "run": write_run_report(store.open("run-a")),
        "hostile": write_run_report(store.open("run-hostile")),
        "gate": write_gate_report(write_gate(gates / "gate-2", hostile=True)),
    }


@pytest.fixture(params=["light", "dark"], scope="module")
def offline(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    scheme: Literal["light", "dark"] = request.param
    context = browser.new_context(
        viewport={"width": 1280, "height": 900},
        color_scheme=scheme,
        offline=True,
    )
    yield context
    context.close()


@pytest.mark.parametrize("kind", FIGURES)
def test_a_report_from_a_file_without_a_network(
    offline: BrowserContext, reports: dict[str, Path], shots: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    watched = Watched(offline, reports[kind].as_uri())
    page = watched.page("")
    _drawn(page, FIGURES[kind])
    scheme = request.node.callspec.params["offline"]
    page.screenshot(path=shots / f"report-{kind}-{scheme}.png", full_page=True)
    found = Axe().run(page).response
    grave = [
        f"{v['id']} ({v['impact']}): {node['html'][:160]}"
        for v in found["violations"]
        if v["impact"] in GRAVE
        for node in v["nodes"]
    ]
    assert grave == []
    assert len(found["passes"]) > 10  # it did look at the page
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.emulate_media(media="print")
    assert page.locator("nav.toc").is_visible() is False
    page.close()
    assert watched.outside == []
    assert watched.errors == []


def _drawn(page: Page, count: int) -> None:
    page.wait_for_selector("html[data-ready=yes]", timeout=PATIENCE_MS)
    assert page.locator(".plot[data-figure]").count() == count
    assert page.locator(".plot[data-figure] svg.main-svg").count() >= count
    assert page.locator("img").count() == 0
    assert page.get_by_text("could not be drawn").count() == 0
