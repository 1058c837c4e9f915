"""The event loop of the load generator at Ctrl-C."""

import asyncio

import pytest

from workbench.load.loops import loop_runner


class Stuck(asyncio.SelectorEventLoop):
    """As uvloop's when Ctrl-C hits it while it starts: it counts as running for ever."""

    def close(self) -> None:
        super().close()
        raise RuntimeError("Cannot close a running event loop")


def test_ctrl_c_is_not_hidden_by_a_loop_that_cannot_be_closed():
    def interrupted() -> None:
        with loop_runner(Stuck) as runner:
            runner.get_loop()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_another_failure_to_close_is_told():
    with pytest.raises(RuntimeError, match="Cannot close"), loop_runner(Stuck) as runner:
        runner.get_loop()
