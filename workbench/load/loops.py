"""Which event loop sends the load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's when it is there, else asyncio's own (None)."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def loop_name() -> str:
    """uvloop | asyncio, of the loop that runs."""
    running = asyncio.get_running_loop()
    return "uvloop" if type(running).__module__.startswith("uvloop") else "asyncio"
