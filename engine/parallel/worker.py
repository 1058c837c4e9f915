"""A rank other than 0: ``python -m engine.parallel.worker`` reads its :class:`engine.parallel.wire.Setup`
from stdin, loads its part of the model, and runs the plans that rank 0 sends. It ends when stdin closes.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback

import msgspec
import zmq

from engine.errors import EngineError
from engine.parallel import wire

EXIT_STOPPED = 0
EXIT_FAILED = 1
ORPHAN_GRACE_S = 2.0


def main() -> int:
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # Ctrl-C and a supervisor's SIGTERM reach the whole process group; rank 0 decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setup = msgspec.json.decode(_first_line(), type=wire.Setup)
    threading.Thread(target=_watch_rank_0, args=(setup.folder,), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.connect(setup.address)
    try:
        from engine.parallel.rank import serve  # brings torch

        serve(setup, socket)
        return EXIT_STOPPED
    except Exception as error:
        if not isinstance(error, EngineError):
            traceback.print_exc()
        socket.send(wire.encode(wire.failure(error)))
        return EXIT_FAILED
    finally:
        socket.close(linger=1000)
        context.term()


def _first_line() -> bytes:
    """Read unbuffered: a thread blocked inside ``sys.stdin`` would hold its lock at shutdown."""
    line = bytearray()
    while not line.endswith(b"\n") and (part := os.read(0, 1)):
        line += part
    return bytes(line)


def _watch_rank_0(folder: str) -> None:
    while os.read(0, 1024):
        pass
    time.sleep(ORPHAN_GRACE_S)  # told to stop, it ends by itself
    shutil.rmtree(folder, ignore_errors=True)  # rank 0 was killed
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main())
