"""Rank 0's side of the other ranks: starts their processes, talks to them, notices when one is gone.

No wait here is without an end: every receive has a deadline, and a process that ends is noticed at once.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.parallel import wire

logger = logging.getLogger(__name__)

M = TypeVar("M", wire.Loaded, wire.Sized, wire.Ready, wire.Done)

TIMEOUT_S = 60.0
"""Longest that one rank waits for another in a step. Ranks do the same work; they differ by far less."""
LOAD_TIMEOUT_S = 1800.0
"""Longest that rank 0 waits for the others' weights after its own are in memory."""
STOP_GRACE_S = 5.0
DEATH_GRACE_S = 2.0
"""After a collective failed: how long the end of the process that caused it may take to show."""
LAST_WORDS_S = 0.2
_POLL_MS = 50


class Worker:
    """One other rank: its process, and a socket to it."""

    def __init__(
        self, setup: wire.Setup, context: zmq.Context[zmq.Socket[bytes]], on_end: Callable[[], None]
    ) -> None:
        self.rank = setup.rank
        self.socket = context.socket(zmq.PAIR)
        self.socket.set_hwm(0)
        self.socket.bind(setup.address)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.parallel.worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        if self.process.stdin is None:
            raise EngineError(f"tensor-parallel rank {self.rank} has no stdin")
        with contextlib.suppress(BrokenPipeError):  # it has ended: noticed like any other end
            self.process.stdin.write(msgspec.json.encode(setup) + b"\n")
            self.process.stdin.flush()
        self.failed: wire.Failed | None = None
        self._decode = wire.from_worker_decoder().decode
        self._on_end = on_end
        threading.Thread(target=self._watch, name=f"rank {self.rank}", daemon=True).start()

    def _watch(self) -> None:
        self.process.wait()
        self._on_end()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def receive(self, timeout_ms: int) -> wire.FromWorker | None:
        """The next message; None when there is none yet. A failure is also kept in ``failed``."""
        if not self.socket.poll(timeout_ms):
            return None
        message = self._decode(self.socket.recv())
        if isinstance(message, wire.Failed):
            self.failed = message
        return message

    def account(self) -> EngineError:
        """Why a process that has ended did so, in its own words if it had any."""
        while self.failed is None and self.receive(int(LAST_WORDS_S * 1000)) is not None:
            pass
        if self.failed is not None:
            return wire.as_error(self.rank, self.failed)
        code = self.process.poll()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return EngineError(f"tensor-parallel rank {self.rank} (process {self.process.pid}) ended {how}")

    def stop(self, grace_s: float) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.socket.close(linger=0)


class Workers:
    """Ranks 1 … ``size`` − 1.

    Args:
        timeout_s: longest wait for an answer to a step.
    """

    def __init__(self, config: EngineConfig, size: int, timeout_s: float = TIMEOUT_S) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-ranks-"))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stopping = False
        self._stopped = False
        self._ended = threading.Event()
        self.timeout_s = timeout_s
        self.store = str(self._folder / "store")
        self.on_end: Callable[[], None] = lambda: None
        """Called, on another thread, when a process ends that was not told to."""
        self._workers: list[Worker] = []
        try:
            for rank in range(1, size):
                setup = wire.Setup(
                    config_json=config.model_dump_json(),
                    rank=rank,
                    size=size,
                    folder=str(self._folder),
                    address=f"ipc://{self._folder}/rank-{rank}",
                    store=self.store,
                    timeout_s=timeout_s,
                )
                self._workers.append(Worker(setup, self._context, self._notice_end))
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def send(self, message: bytes) -> None:
        """To every rank.

        Raises:
            EngineError: a rank has ended.
        """
        for worker in self._workers:
            try:
                worker.socket.send(message, zmq.NOBLOCK)  # without a peer it would block for ever
            except zmq.Again:
                raise self._cause() from None

    def receive(self, kind: type[M], timeout_s: float) -> list[M]:
        """One ``kind`` from every rank, in their order.

        Raises:
            InvalidInputError, ModelLoadError: a rank reported it.
            EngineError: a rank failed or ended, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        return [self._receive_one(worker, kind, deadline, timeout_s) for worker in self._workers]

    def _receive_one(self, worker: Worker, kind: type[M], deadline: float, timeout_s: float) -> M:
        while (message := worker.receive(_POLL_MS)) is None:
            self.check()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"tensor-parallel rank {worker.rank} (process {worker.process.pid}) has not answered in "
                    f"{timeout_s:g} s"
                )
        if isinstance(message, kind):
            return message
        if isinstance(message, wire.Failed):
            raise self._cause()
        raise EngineError(
            f"tensor-parallel rank {worker.rank}: {type(message).__name__}, not {kind.__name__}"
        )

    def check(self) -> None:
        """
        Raises:
            EngineError: a rank has ended.
        """
        if self._ended.is_set() and not self._stopping:
            raise self._cause()

    def explain(self, error: Exception) -> Exception:
        """What to raise when rank 0's part of a step ended with ``error``: a rank's end, if that was it."""
        self._ended.wait(DEATH_GRACE_S)
        return self._cause() if self._ended.is_set() else error

    def _cause(self) -> EngineError:
        """The first cause: a rank that was killed makes the others fail, too."""
        self._ended.wait(DEATH_GRACE_S)
        time.sleep(LAST_WORDS_S)
        ended = [worker for worker in self._workers if worker.ended or worker.failed]
        killed = [worker for worker in ended if (worker.process.poll() or 0) < 0]
        return (killed or ended or self._workers)[0].account()

    def _notice_end(self) -> None:
        if not self._stopping:
            self._ended.set()
            self.on_end()

    def stop(self) -> None:
        """End all of them, by force if need be. May be called twice."""
        if self._stopped:
            return
        self._stopped = self._stopping = True
        grace = 0.0 if self._ended.is_set() else STOP_GRACE_S
        for worker in self._workers:
            with contextlib.suppress(zmq.Again):
                worker.socket.send(wire.encode(wire.Stop()), zmq.NOBLOCK)
        for worker in self._workers:
            worker.stop(grace)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
