"""The dashboard in a real browser: pages draw, links lead on, no other host is asked for anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.watched import PATIENCE_MS, Watched

pytestmark = pytest.mark.browser
_PATIENCE_MS = PATIENCE_MS
PAGES = {
    "runs": ("", "Runs and sweeps", 0),
    "run-latency": ("run?run=run-a", "chunk 256", 2),
    "run-timeline": ("run?run=run-a&tab=Timeline", "chunk 256", 1),
    "run-steps": ("run?run=run-a&tab=Steps", "chunk 256", 3),
    "run-hardware": ("run?run=run-a&tab=Hardware", "chunk 256", 1),
    "run-hostile": ("run?run=run-hostile&tab=Timeline", "</script><img src=x onerror=alert(1)>", 1),
    "sweep": ("sweep?sweep=sweep-chunk", "Which chunk_size serves short chats best", 1),
    "sweep-levels": ("sweep?sweep=sweep-chunk&tab=Levels", "Which chunk_size serves short chats best", 2),
    "compare": ("compare?runs=run-a&runs=run-b", "Compare runs", 2),
    "xray": ("xray?run=run-a&step=120", "Engine X-ray", 3),
    "lesson": ("xray?lesson=12", "Engine X-ray", 3),
    "run-split": ("run?run=run-a&tab=Where time goes", "chunk 256", 2),
    "run-findings": ("run?run=run-a&tab=Findings", "chunk 256", 0),
    "capacity": ("capacity", "Capacity on chat", 1),
    "gate": ("gate?gate=gate-2", "Performance gate", 1),
    "gate-history": ("gate?gate=gate-2&tab=History", "Performance gate", 1),
    "live": ("live", "Live", 0),
    "calculator": ("calculator?model=Llama-3.1-70B&gpus=4", "Calculator", 0),
}


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all pages: its cache holds the application's scripts."""
    shared = browser.new_context(viewport={"width": 1440, "height": 1200})
    yield shared
    shared.close()


@pytest.fixture
def watched(context: BrowserContext, dashboard: str) -> Iterator[Watched]:
    found = Watched(context, dashboard + "/")
    yield found
    for page in context.pages:
        page.close()
    assert found.outside == []
    assert found.errors == []


def _drawn(page: Page, heading: str, charts: int) -> None:
    expect(page.get_by_role("heading", level=1).filter(has_text=heading)).to_be_visible(timeout=_PATIENCE_MS)
    expect(
        page.locator(".js-plotly-plot .main-svg").first if charts else page.locator("h1").first
    ).to_be_visible(timeout=_PATIENCE_MS)
    expect(page.locator(".js-plotly-plot")).to_have_count(charts, timeout=_PATIENCE_MS)
    expect(page.locator("[data-testid=stSkeleton]")).to_have_count(0, timeout=_PATIENCE_MS)
    expect(page.locator("[data-testid=stException]")).to_have_count(0)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_draws(watched: Watched, shots: Path, name: str) -> None:
    path, heading, charts = PAGES[name]
    page = watched.page(path)
    _drawn(page, heading, charts)
    page.screenshot(path=shots / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_still_picture_stands_in_for_the_first_chart(
    browser: Browser, dashboard: str, shots: Path, scheme: Literal["dark", "light"]
) -> None:
    """Plotly is held back: the summary and the chart are there all the same; then it takes the place."""
    context = browser.new_context(viewport={"width": 1440, "height": 1200}, color_scheme=scheme)
    page, held = context.new_page(), []
    page.route("**/PlotlyChart*", lambda route: held.append(route))
    page.goto(f"{dashboard}/run?run=run-a")
    still = page.locator("img.still")
    expect(still).to_be_visible(timeout=_PATIENCE_MS)
    assert still.evaluate("e => e.complete && e.naturalWidth > 0")
    expect(page.locator(".tiles").first).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(0)
    page.screenshot(path=shots / f"run-still-{scheme}.png")
    before = still.bounding_box()
    for route in held:
        route.continue_()
    chart = page.locator(".js-plotly-plot .main-svg").first
    expect(chart).to_be_visible(timeout=_PATIENCE_MS)
    expect(still).to_be_hidden()
    after = chart.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["x"] - after["x"]) <= 2
    assert abs(before["y"] - after["y"]) <= 2
    page.screenshot(path=shots / f"run-drawn-{scheme}.png")
    context.close()


@pytest.mark.parametrize(("kind", "scheme", "width"), [("dark", "dark", 1440), ("narrow", "light", 480)])
def test_dark_and_narrow(
    watched: Watched, shots: Path, kind: str, scheme: Literal["dark", "light"], width: int
) -> None:
    for name in ("sweep", "xray", "lesson", "gate"):
        path, heading, charts = PAGES[name]
        page = watched.context.new_page()
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 1200})
        page.goto(watched.home + path)
        _drawn(page, heading, charts)
        page.screenshot(path=shots / f"{name}-{kind}.png", full_page=True)
        page.close()


def test_from_a_run_to_a_request_to_a_step(watched: Watched, shots: Path) -> None:
    page = watched.page("run?run=run-a&tab=Requests")
    _drawn(page, "chunk 256", 0)
    # Typed, not clicked: on a busy machine the list is drawn again between finding an option and the click.
    choose = page.get_by_role("combobox", name="Or choose a request by its id")
    choose.fill("req-0009")
    expect(page.get_by_role("option")).to_have_count(1, timeout=_PATIENCE_MS)
    choose.press("Enter")
    expect(page.get_by_role("heading", name="Request req-0009")).to_be_visible(timeout=_PATIENCE_MS)
    _drawn(page, "chunk 256", 1)
    page.screenshot(path=shots / "request.png", full_page=True)
    page.get_by_text("in the X-ray").click()
    _drawn(page, "Engine X-ray", 3)
    assert "run=run-a" in page.url
    assert "step=" in page.url
    before = page.url
    page.get_by_role("button", name="Next", exact=True).click()
    page.wait_for_url(lambda url: url != before)
    _drawn(page, "Engine X-ray", 3)


def test_a_tab_is_in_the_address(watched: Watched) -> None:
    page = watched.page("run?run=run-a")
    _drawn(page, "chunk 256", 2)
    page.get_by_role("tab", name="Timeline").click()
    page.wait_for_url("**tab=Timeline**")
    _drawn(page, "chunk 256", 1)


def test_a_sweep_is_one_click_from_the_start(watched: Watched) -> None:
    page = watched.page("")
    _drawn(page, "Runs and sweeps", 0)
    page.get_by_role("link", name="Open sweep").click()
    _drawn(page, "Which chunk_size serves short chats best", 1)
