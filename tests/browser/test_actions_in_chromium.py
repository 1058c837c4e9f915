"""What a reader does: delete a run, follow one that is being written, look through a store of their own."""

from __future__ import annotations

import os
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from reports.studies import list_capacities, list_gates
from reports.sweeps import list_sweeps
from tests.browser.conftest import serving
from tests.browser.watched import PATIENCE_MS, Watched
from tests.reports.live_factory import GrowingRun
from tests.reports.store_factory import write_run
from workbench.runstore import RunStore

pytestmark = pytest.mark.browser
REAL = "WORKBENCH_BROWSE_STORE"
TABS = (
    "Latency",
    "Where time goes",
    "Findings",
    "Timeline",
    "Requests",
    "Steps",
    "Hardware",
    "Configuration",
)
LOOKS: tuple[tuple[str, Literal["light", "dark"], int], ...] = (
    ("light", "light", 1440),
    ("dark", "dark", 1440),
    ("narrow", "light", 420),
)


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    shared = browser.new_context(viewport={"width": 1440, "height": 1200})
    yield shared
    shared.close()


def test_deleting_asks_first(
    context: BrowserContext, dashboard: str, browsed_store: Path, shots: Path
) -> None:
    write_run(browsed_store, "run-doomed", count=4)
    watched = Watched(context, dashboard + "/")
    page = watched.page("?q=doomed")
    expect(page.get_by_text("1 of 3")).to_be_visible(timeout=PATIENCE_MS)
    _tick_first_row(page)
    page.get_by_role("button", name="Delete 1").click()
    expect(page.get_by_role("dialog").get_by_text("run-doomed")).to_be_visible(timeout=PATIENCE_MS)
    page.screenshot(path=shots / "delete.png")
    page.get_by_role("button", name="Keep them").click()
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=PATIENCE_MS)
    assert (browsed_store / "run-doomed").is_dir()
    page.get_by_role("button", name="Delete 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No run fits this filter.")).to_be_visible(timeout=PATIENCE_MS)
    assert not (browsed_store / "run-doomed").exists()
    page.close()
    assert watched.outside == []
    assert watched.errors == []


def _tick_first_row(page: Page) -> None:
    """The table is drawn on a canvas: its first row's tick box is at its left edge, below the header."""
    table = page.locator("[data-testid=stDataFrame]").first
    expect(table).to_be_visible(timeout=PATIENCE_MS)
    button = page.get_by_role("button", name="Delete 1")
    for _ in range(5):  # the first click may come before the table listens
        box = table.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 18, box["y"] + 52)
        try:
            expect(button).to_be_visible(timeout=5_000)
            return
        except AssertionError:
            continue
    pytest.fail("the row could not be ticked")


def test_a_run_is_followed_without_reloading(
    context: BrowserContext, dashboard: str, browsed_store: Path, shots: Path
) -> None:
    run = GrowingRun(browsed_store, planned=6)
    try:
        run.add(finished=["x-m0", "x-m1"])
        page = context.new_page()
        page.goto(f"{dashboard}/live")
        expect(page.get_by_text("2 of 6 requests")).to_be_visible(timeout=PATIENCE_MS)
        for index in (2, 3, 4):
            run.add(finished=[f"x-m{index}"])
        expect(page.get_by_text("5 of 6 requests")).to_be_visible(timeout=PATIENCE_MS)
        # Four steps of 0.1 s: the figure goes on, too.
        ticks = page.locator(".xtick text, .x5tick text").filter(has_text="0.4")
        expect(ticks.first).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator("[data-testid=stException]")).to_have_count(0)
        page.screenshot(path=shots / "live-growing.png", full_page=True)
        page.close()
    finally:
        run.close()
        shutil.rmtree(run.folder)  # other tests share the store


def pages_of(root: Path) -> dict[str, str]:
    """Name to address of every page that a store has."""
    found = {"runs": "", "live": "live", "calculator": "calculator", "lesson": "xray?lesson=12"}
    runs = [info.id for info in RunStore(root).list() if info.created and not info.sweep_id]
    for run in runs[-3:]:
        for tab in TABS:
            found[f"run-{run}-{tab}"] = f"run?run={run}&tab={urllib.parse.quote(tab)}"
        found[f"xray-{run}"] = f"xray?run={run}&step=60"
    if len(runs) > 1:
        found["compare"] = "compare?" + "&".join(f"runs={run}" for run in runs[:3])
    for sweep in list_sweeps(root):
        for tab in ("Response", "Levels", "Noise", "Hypothesis", "Changed factor", "Runs"):
            found[f"{sweep.id}-{tab}"] = f"sweep?sweep={sweep.id}&tab={urllib.parse.quote(tab)}"
    found |= {search.id: f"capacity?capacity={search.id}" for search in list_capacities(root)}
    found |= {gate.id: f"gate?gate={gate.id}" for gate in list_gates(root)}
    return found


@pytest.mark.timeout(1800)
@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no run store to look through")
def test_every_page_of_a_store_of_ones_own(browser: Browser, shots: Path, tmp_path: Path) -> None:
    root = Path(os.environ[REAL])
    with serving(root, tmp_path) as home:
        for look, scheme, width in LOOKS:
            shared = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
            watched = Watched(shared, home + "/")
            for name, path in pages_of(root).items():
                page = watched.page(path)
                expect(page.locator("h1").first).to_be_visible(timeout=PATIENCE_MS)
                expect(page.locator("[data-testid=stSkeleton]")).to_have_count(0, timeout=PATIENCE_MS)
                expect(page.locator("[data-test-script-state=running]")).to_have_count(0, timeout=PATIENCE_MS)
                expect(page.locator("[data-testid=stException]")).to_have_count(0)
                page.wait_for_timeout(400)
                page.screenshot(path=shots / f"{name}-{look}.png".replace(" ", "-"), full_page=True)
                page.close()
            shared.close()
            assert watched.outside == []
            assert watched.errors == []
