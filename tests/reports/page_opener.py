"""Opens dashboard pages without a browser and tells what they say."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

from reports.dashboard import store

APP = Path(store.__file__).with_name("app.py")


def open_page(view: str, **query: str | list[str]) -> AppTest:
    """The page as after following a link with this query; an exception in it fails the test."""
    page = AppTest.from_file(str(APP), default_timeout=60)
    page.switch_page(f"views/{view}.py")
    for key, value in query.items():
        page.query_params[key] = value
    page.run()
    assert not page.exception, [e.value for e in page.exception]
    return page


def said(page: AppTest) -> str:
    """Everything a reader is told outside of charts and tables."""
    kinds = (
        page.title,
        page.info,
        page.warning,
        page.error,
        page.success,
        page.caption,
        page.markdown,
        page.subheader,
    )
    texts = [str(element.value) for kind in kinds for element in kind]
    return "\n".join([*texts, *(str(element.proto.body) for element in page.get("html"))])
