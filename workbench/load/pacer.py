"""Waits for absolute times on the monotonic clock, without spinning and finer than an event loop's timers.

asyncio's timers and uvloop's tick in milliseconds, which shows from some hundred requests per second on.
Linux's
timerfd wakes the loop within tens of microseconds and costs nothing while it waits; burning the last
millisecond
in a loop instead would take the core that the server may need.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Pacer:
    """One waiter at a time. Use as a context manager inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
        self._fd = -1
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)

    def __enter__(self) -> Pacer:
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._fired)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def until(self, due_ns: int) -> None:
        """Return as soon after ``due_ns`` (``time.monotonic_ns``) as can be, never before it."""
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if self._fd < 0 or not self._arm(due_ns):
                # No timerfd: the loop's own timer, and yielding through the last tick that it may miss.
                await asyncio.sleep(left_ns / 1e9 if left_ns > 1_000_000 else 0)
                continue
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _arm(self, due_ns: int) -> bool:
        spec = _Itimerspec()
        spec.value.sec, spec.value.nsec = divmod(due_ns, 1_000_000_000)
        libc = self._libc
        return (
            libc is not None
            and libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) == 0
        )

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
