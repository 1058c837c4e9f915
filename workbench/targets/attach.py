"""A server that is already there: any OpenAI-compatible base URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from engine.errors import InvalidInputError
from workbench.manifest import TargetInfo


class AttachTarget:
    """Never started, never stopped."""

    def __init__(self, base_url: str, model: str | None) -> None:
        """``base_url``: with or without ``/v1`` at the end.

        Raises:
            InvalidInputError: it is no http(s) URL.
        """
        self.base_url = normalise(base_url)
        self.info = TargetInfo(kind="attach", base_url=self.base_url, model=model)

    def __enter__(self) -> AttachTarget:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def pids(self) -> list[int]:
        return []

    def death(self) -> str | None:
        return None


def normalise(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises on a bad one
    except ValueError:
        good = False
    if not good:
        raise InvalidInputError("base-url", base_url, "http://HOST:PORT or https://HOST[:PORT]")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")
