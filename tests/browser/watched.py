"""A browser context that notes what must not happen."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page

PATIENCE_MS = 45_000


class Watched:
    """Notes script errors, dialogs, and requests to other places than ``home``."""

    def __init__(self, context: BrowserContext, home: str) -> None:
        self.context, self.home = context, home
        self.outside: list[str] = []
        self.errors: list[str] = []
        context.set_default_timeout(PATIENCE_MS)
        context.on("request", lambda request: self._request(request.url))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def _request(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.outside.append(url)

    def page(self, path: str) -> Page:
        page = self.context.new_page()
        page.goto(self.home + path)
        return page
