"""Taking turns with the process of the other side: one byte allows a turn, one byte says that it is over."""

from __future__ import annotations

import os
import sys


class Baton:
    """Between turns a process waits in a read and takes no processor time. Started alone (no pipes in argv),
    it never waits."""

    def __init__(self) -> None:
        self._pipes = [int(number) for number in sys.argv[2:4]]
        """One to read from, one to write to."""

    def wait(self) -> None:
        """For the next turn.

        Raises:
            SystemExit: the gate has gone.
        """
        if self._pipes and not os.read(self._pipes[0], 1):
            raise SystemExit("the gate has ended")

    def pass_on(self) -> None:
        """The turn (or the warm-up) is over."""
        if self._pipes:
            os.write(self._pipes[1], b".")
