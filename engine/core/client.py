"""How a front end talks to a core: in the same process (:class:`InprocCoreClient`), or in another
(:class:`ProcessCoreClient`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.core import wire
from engine.errors import EngineDeadError, EngineError, InvalidInputError, ModelLoadError
from engine.executor.info import ExecutorInfo
from engine.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats

DEFAULT_EXECUTOR = "engine.executor.factory:create_executor"

logger = logging.getLogger(__name__)

LAST_WORDS_S = 0.05
"""What a core's own account of its end gets to arrive before ours is put in its place."""
STOP_GRACE_S = 30.0
"""What the core gets to finish its step and write its trace before it is killed."""


class InprocCoreClient:
    """The core as an object of this process: the caller's thread runs the steps."""

    def __init__(self, config: EngineConfig, executor_factory: str = DEFAULT_EXECUTOR) -> None:
        """
        Raises:
            ModelLoadError, InvalidInputError: the core can't be made from ``config``.
        """
        from engine.core.build import create_core  # not at the top: a server's front end needs no core

        self._core, self.info = create_core(config, executor_factory)

    def add(self, request: EngineCoreRequest) -> None:
        self._core.add_request(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._core.abort_requests(request_ids)

    def has_work(self) -> bool:
        return self._core.has_work()

    def step(self) -> EngineCoreOutputs:
        return self._core.step()

    def stats(self) -> SchedulerStats:
        return self._core.stats()

    def reset_prefix_cache(self) -> bool:
        """False when running requests hold blocks."""
        return self._core.reset_prefix_cache()

    def shutdown(self) -> None:
        """May be called twice."""
        self._core.shutdown()


class AsyncCoreClient(Protocol):
    """A core that runs by itself. ``add`` and ``abort`` never block and may be called while a task is
    being cancelled.
    """

    info: ExecutorInfo
    initial_stats: SchedulerStats

    def add(self, request: EngineCoreRequest) -> None: ...

    def abort(self, request_ids: Sequence[str]) -> None: ...

    async def get_outputs(self) -> EngineCoreOutputs:
        """The next step's news.

        Raises:
            EngineDeadError: the core has ended; so will every later call.
        """
        ...

    async def reset_prefix_cache(self) -> bool: ...

    async def start_profile(self, num_steps: int, max_seconds: float) -> None: ...

    async def stop_profile(self) -> bool: ...

    async def shutdown(self) -> None: ...


class ProcessCoreClient:
    """Owns the core's process and the sockets to it. Belongs to the event loop that :meth:`start` ran in.

    The process is watched: when it ends unasked, a :class:`wire.Died` is put into our own inbox, behind
    whatever the core still managed to send, so that there is one place where death is noticed.
    """

    info: ExecutorInfo
    initial_stats: SchedulerStats

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-"))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._async_context = zmq.asyncio.Context(self._context)
        self._to_core = self._context.socket(zmq.PUSH)
        self._from_core = self._async_context.socket(zmq.PULL)
        self._decode = wire.from_core_decoder().decode
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self._dead: EngineDeadError | None = None
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[bool]] = {}

    @classmethod
    async def start(cls, config: EngineConfig, executor_factory: str = DEFAULT_EXECUTOR) -> ProcessCoreClient:
        """Start the process and wait until the model is loaded. A cancelled start leaves nothing behind.

        Raises:
            ModelLoadError, InvalidInputError: as the core reported them.
            EngineDeadError: the process ended or failed in another way; its own output says more.
        """
        client = cls()
        try:
            await client._launch(config, executor_factory)
            ready = await client._receive()
        except BaseException:
            await client.shutdown()
            raise
        if isinstance(ready, wire.Ready):
            client.info, client.initial_stats = ready.info, ready.stats
            return client
        await client.shutdown()
        raise _start_error(ready)

    async def _launch(self, config: EngineConfig, executor_factory: str) -> None:
        inbox, outbox = f"ipc://{self._folder}/in", f"ipc://{self._folder}/out"
        self._to_core.set_hwm(0)
        self._from_core.set_hwm(0)
        self._from_core.bind(outbox)
        self._to_core.connect(inbox)
        command = [
            *(sys.executable, "-m", "engine.core.process"),
            *("--inbox", inbox, "--outbox", outbox, "--executor", executor_factory),
        ]
        self._process = await asyncio.create_subprocess_exec(
            *_deaf_to_ctrl_c(command), stdin=asyncio.subprocess.PIPE
        )
        self._watcher = asyncio.create_task(self._watch(self._process, outbox))
        if self._process.stdin is None:
            raise EngineError("the engine process has no stdin")
        self._process.stdin.write(config.model_dump_json().encode() + b"\n")

    async def _watch(self, process: asyncio.subprocess.Process, outbox: str) -> None:
        code = await process.wait()
        if self._stopping:
            return
        await asyncio.sleep(LAST_WORDS_S)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        with self._context.socket(zmq.PUSH) as note:
            note.connect(outbox)
            note.send(wire.encode(wire.Died(f"the engine process ended {how}; its log says why")))

    async def _receive(self) -> wire.FromCore:
        return self._decode(await self._from_core.recv())

    def add(self, request: EngineCoreRequest) -> None:
        self._send(wire.Add(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._send(wire.Abort(list(request_ids)))

    def _send(self, message: wire.ToCore) -> None:
        if self._dead is None and not self._to_core.closed:
            self._to_core.send(wire.encode(message), zmq.NOBLOCK)

    async def get_outputs(self) -> EngineCoreOutputs:
        """See :class:`AsyncCoreClient`. One task calls it; it also completes the calls of other tasks."""
        while self._dead is None:
            message = await self._receive()
            match message:
                case wire.Step(outputs):
                    return outputs
                case wire.ResetPrefixCacheDone(call_id, succeeded):
                    if (call := self._calls.pop(call_id, None)) is not None and not call.done():
                        call.set_result(succeeded)
                case wire.ProfileDone(call_id, succeeded, field, value, allowed):
                    if (call := self._calls.pop(call_id, None)) is not None and not call.done():
                        if field:
                            call.set_exception(InvalidInputError(field, value, allowed))
                        else:
                            call.set_result(succeeded)
                case wire.Died(text):
                    self._die(EngineDeadError(text))
                case _:
                    raise EngineError(f"unexpected message from the engine process: {type(message).__name__}")
        raise self._dead

    async def reset_prefix_cache(self) -> bool:
        """False when running requests hold blocks. Needs a task that keeps calling :meth:`get_outputs`."""
        return await self._call(wire.ResetPrefixCache)

    async def start_profile(self, num_steps: int, max_seconds: float) -> None:
        """Profile the next steps.

        Raises:
            InvalidInputError: as :meth:`engine.core.core.EngineCore.start_profile`.
        """
        await self._call(lambda call_id: wire.StartProfile(call_id, num_steps, max_seconds))

    async def stop_profile(self) -> bool:
        """End the profiled window; False when none is open."""
        return await self._call(wire.StopProfile)

    async def _call(self, message: Callable[[int], wire.ToCore]) -> bool:
        """Send what needs an answer, and wait for it."""
        if self._dead is not None:
            raise self._dead
        call_id = next(self._call_ids)
        call: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        self._send(message(call_id))
        try:
            return await call
        finally:
            self._calls.pop(call_id, None)

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)

    async def shutdown(self) -> None:
        """Stop the process, kill it if it doesn't stop in time, and remove the sockets. May be called
        twice.
        """
        self._send(wire.Shutdown())
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()  # also stops a core that is still loading its model, see _watch_parent
            try:
                async with asyncio.timeout(STOP_GRACE_S):
                    await process.wait()
            except TimeoutError:
                logger.warning("the engine process did not stop in %.0f s: killed", STOP_GRACE_S)
                process.kill()
                await process.wait()
        if self._watcher is not None:
            await self._watcher
        if self._dead is None:
            self._die(EngineDeadError("the engine was shut down"))
        self._to_core.close(linger=0)
        self._from_core.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)


def _deaf_to_ctrl_c(command: list[str]) -> list[str]:
    """``command``, with SIGINT ignored from its first instruction on: Ctrl-C reaches the whole process
    group, and Python would end with a traceback while it still imports.

    Only an ignored signal survives ``exec``, and event loops give their children default signals; so it takes
    somebody in between. Without a shell the core ignores SIGINT as soon as it is loaded.
    """
    shell = shutil.which("sh")
    return command if shell is None else [shell, "-c", 'trap "" INT; exec "$@"', "sh", *command]


def _start_error(message: wire.FromCore) -> EngineError:
    match message:
        case wire.StartFailed(kind="InvalidInputError", field=field, value=value, allowed=allowed):
            return InvalidInputError(field, value, allowed)
        case wire.StartFailed(kind="ModelLoadError", message=text):
            return ModelLoadError(text)
        case wire.StartFailed(kind=kind, message=text):
            return EngineDeadError(f"{kind}: {text}")
        case wire.Died(text):
            return EngineDeadError(text)
    return EngineDeadError(f"unexpected first message {type(message).__name__}")
