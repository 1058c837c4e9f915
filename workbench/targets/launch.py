"""``python launch.py PARENT COMMAND...``: become COMMAND, and end when process PARENT ends.

A small program of its own, because a hook between fork and exec is not safe in a process with threads.
Imports nothing of ours.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            # It died before the request took hold.
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
