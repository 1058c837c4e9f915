"""Which event loop sends the load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's when it is there, else asyncio's own (None)."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


@contextlib.contextmanager
def loop_runner(
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Iterator[asyncio.Runner]:
    """A runner of such a loop that ends with KeyboardInterrupt at Ctrl-C, whenever it comes.

    Where it hits uvloop as it starts or stops, the loop still counts as running and can't be closed: the
    RuntimeError of that would hide the Ctrl-C.
    """
    try:
        with asyncio.Runner(loop_factory=factory or loop_factory()) as runner:
            yield runner
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def loop_name() -> str:
    """uvloop | asyncio, of the loop that runs."""
    running = asyncio.get_running_loop()
    return "uvloop" if type(running).__module__.startswith("uvloop") else "asyncio"
