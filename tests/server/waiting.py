"""Waiting for a condition, with a deadline and no fixed sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds; TimeoutError when it does not within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)
