"""The core in a process of its own: ``python -m engine.core.process`` reads its configuration from stdin
and serves until told to stop, or until stdin closes, which means that the front end has gone.

One thread does everything. While there is work a turn of the loop is: take what has arrived (without
waiting), run a step, send its outputs. Without work (the core has checked its invariants then) the loop
blocks until a message comes.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

import zmq

from engine.config import EngineConfig
from engine.core import wire
from engine.core.build import create_core
from engine.core.client import DEFAULT_EXECUTOR
from engine.core.core import EngineCore
from engine.errors import EngineError, InvalidInputError
from engine.messages import EngineCoreOutput, FinishReason

logger = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_DIED = 1
EXIT_START_FAILED = 2
IDLE_CHECK_MS = 500
"""How often an idle core asks whether its executor is still whole."""
ORPHAN_GRACE_S = 30.0
"""How long an orphan may finish its step and write its trace before it is ended."""


class CoreLoop:
    """Serves one core over two sockets until a :class:`wire.Shutdown` arrives.

    Args:
        inbox: PULL socket with :data:`wire.ToCore` messages.
        outbox: PUSH socket for :data:`wire.FromCore` messages.
    """

    def __init__(self, core: EngineCore, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes]) -> None:
        self._core = core
        self._inbox = inbox
        self._outbox = outbox
        self._decode = wire.to_core_decoder().decode

    def run(self) -> None:
        core = self._core
        while self._take_messages(wait=False):
            if core.has_work():
                self._send(wire.Step(core.step()))
            elif not self._take_messages(wait=True):
                return

    def _take_messages(self, *, wait: bool) -> bool:
        """Handle everything that has arrived, waiting for the first message if told to. False: stop."""
        inbox = self._inbox
        while wait or inbox.poll(0):
            while wait and not inbox.poll(IDLE_CHECK_MS):
                self._core.check_health()
            message = self._decode(inbox.recv())
            wait = False
            if isinstance(message, wire.Shutdown):
                return False
            self._handle(message)
        return True

    def _handle(self, message: wire.ToCore) -> None:
        match message:
            case wire.Add(request):
                try:
                    self._core.add_request(request)
                # The front end checks first; still no request may ever end the core.
                except InvalidInputError as error:
                    refusal = EngineCoreOutput(
                        request_id=request.request_id,
                        new_token_ids=[],
                        finish_reason=FinishReason.ERROR,
                        error=str(error),
                    )
                    self._send(wire.Step(self._core.news([refusal])))
            case wire.Abort(request_ids):
                self._core.abort_requests(request_ids)
            case wire.ResetPrefixCache(call_id):
                self._send(wire.ResetPrefixCacheDone(call_id, self._core.reset_prefix_cache()))
            case wire.StartProfile(call_id, num_steps, max_seconds):
                try:
                    self._core.start_profile(num_steps, max_seconds)
                    self._send(wire.ProfileDone(call_id, True))
                except InvalidInputError as error:
                    self._send(wire.ProfileDone(call_id, False, error.field, str(error.value), error.allowed))
            case wire.StopProfile(call_id):
                self._send(wire.ProfileDone(call_id, self._core.stop_profile()))

    def _send(self, message: wire.FromCore) -> None:
        self._outbox.send(wire.encode(message))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.core.process", description=__doc__)
    parser.add_argument("--inbox", required=True, help="Address to bind for messages to the core.")
    parser.add_argument("--outbox", required=True, help="Address to connect to for messages from the core.")
    parser.add_argument(
        "--executor", default=DEFAULT_EXECUTOR, help="module:function that makes the executor."
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # Ctrl-C and a supervisor's SIGTERM reach the whole process group; the front end decides when the core
    # stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (inbox, outbox):
        socket.set_hwm(0)
    inbox.bind(arguments.inbox)
    outbox.connect(arguments.outbox)
    config = EngineConfig.model_validate_json(sys.stdin.readline())
    serving = threading.Event()
    threading.Thread(target=_watch_parent, args=(arguments.inbox, serving), daemon=True).start()
    code = _serve(config, arguments.executor, inbox, outbox, serving)
    inbox.close(linger=0)
    outbox.close(linger=1000)
    context.term()  # waits until the last words are out, a second at most
    return code


def _serve(
    config: EngineConfig,
    executor_factory: str,
    inbox: zmq.Socket[bytes],
    outbox: zmq.Socket[bytes],
    serving: threading.Event,
) -> int:
    try:
        core, info = create_core(config, executor_factory)
    except Exception as error:
        if not isinstance(error, EngineError):
            traceback.print_exc()
        outbox.send(wire.encode(_start_failure(error)))
        return EXIT_START_FAILED
    serving.set()
    try:
        outbox.send(wire.encode(wire.Ready(info, core.stats())))
        CoreLoop(core, inbox, outbox).run()
    except Exception as error:
        traceback.print_exc()
        outbox.send(wire.encode(wire.Died(f"{type(error).__name__}: {_first_line(error)}")))
        return EXIT_DIED
    finally:
        core.shutdown()
    return EXIT_STOPPED


def _start_failure(error: Exception) -> wire.StartFailed:
    details: dict[str, Any] = {}
    if isinstance(error, InvalidInputError):
        details = {"field": error.field, "value": str(error.value), "allowed": error.allowed}
    return wire.StartFailed(type(error).__name__, _first_line(error), **details)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _watch_parent(inbox: str, serving: threading.Event) -> None:
    """When the front end's end of stdin closes, however it died: stop the loop, or end the process if
    there is none yet or it doesn't stop.

    Reads the descriptor itself: a thread blocked inside ``sys.stdin`` would hold its lock when the
    interpreter shuts down.
    """
    while os.read(0, 1024):
        pass
    if serving.is_set():
        with zmq.Context().socket(
            zmq.PUSH
        ) as socket:  # sockets of the other context belong to the main thread
            socket.linger = 1000  # the loop may have ended already
            socket.connect(inbox)
            socket.send(wire.encode(wire.Shutdown()))
        time.sleep(ORPHAN_GRACE_S)
    os._exit(EXIT_DIED)


if __name__ == "__main__":
    sys.exit(main())
