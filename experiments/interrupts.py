"""SIGTERM ends an experiment as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM ends an experiment as Ctrl-C does: the target is stopped and what was measured is kept."""

    def interrupt(_number: int, _frame: object) -> None:
        # By way of SIGINT, so that a running event loop handles it as it handles Ctrl-C. A process started in
        # the background has SIGINT ignored: then there is nobody to hand it to.
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
