"""A server process from its first line to its exit code: bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError, ModelLoadError
from engine.frontend.async_llm import AsyncLLM
from engine.server.app import build_app
from engine.server.errors import engine_dead, shutting_down
from engine.server.listener import bind_listener
from engine.server.options import ServerOptions
from engine.server.state import STATE

EXIT_OK = 0
EXIT_ENGINE_DIED = 1
EXIT_USAGE = 2

ENGINE_CHECK_S = 0.1
"""How often a dead engine is looked for; requests in flight learn of it at once, by their own error."""
ABORT_GRACE_S = 2.0
"""What aborted requests get to tell their clients so."""
LISTEN_BACKLOG = 1024

StartEngine = Callable[[EngineConfig], Awaitable[AsyncLLM]]


def run(config: EngineConfig, options: ServerOptions, start_engine: StartEngine = AsyncLLM.start) -> int:
    """Serve until SIGTERM or SIGINT; the exit code: 0 stopped, 1 the engine died, 2 bad input.

    Every failure is one line on stderr.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # What a handler raises we log ourselves; what is left are tracebacks about what clients send.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serve(config, options, start_engine))
    except (InvalidInputError, ModelLoadError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except EngineError as error:
        print(f"error: the engine did not start: {error}", file=sys.stderr)
        return EXIT_ENGINE_DIED
    except KeyboardInterrupt:
        return EXIT_OK


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on this platform: asyncio's own loop does the same, slower
        return None
    return uvloop.new_event_loop


async def serve(
    config: EngineConfig, options: ServerOptions, start_engine: StartEngine = AsyncLLM.start
) -> int:
    """Start the engine, serve, and return the exit code (0 or 1).

    Raises:
        InvalidInputError: port taken, host unknown, or a bad setting: before the model is loaded where that
            can be known.
        ModelLoadError, EngineDeadError: the engine did not come up.
    """
    began = time.monotonic()
    listener = bind_listener(options.host, options.port)
    with contextlib.closing(listener), _StopSignals() as signals:
        engine = await _start_or_stop(start_engine(config), signals)
        if engine is None:
            return EXIT_OK
        try:
            options = options.model_copy(update={"port": listener.getsockname()[1]})
            return await _serve_engine(engine, config, options, listener, signals, began)
        finally:
            await engine.shutdown(0.0)


async def _start_or_stop(starting: Awaitable[AsyncLLM], signals: _StopSignals) -> AsyncLLM | None:
    """The engine; None when a signal came first."""
    start = asyncio.ensure_future(starting)
    stop = asyncio.create_task(signals.wait())
    await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if start.done():
        return start.result()
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await start
    return None


async def _serve_engine(
    engine: AsyncLLM,
    config: EngineConfig,
    options: ServerOptions,
    listener: socket.socket,
    signals: _StopSignals,
    began: float,
) -> int:
    app = build_app(engine, config, options)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,  # kilobytes that unpack to hundreds of megabytes would hold up every stream
        access_log=None,
        shutdown_timeout=ABORT_GRACE_S,
    )
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=LISTEN_BACKLOG)
        await _listen(site, options)
        gc.collect()
        gc.freeze()  # what exists now stays: later collections don't walk it between two tokens
        print(
            f"Serving {app[STATE].model_name} on http://{_url_host(options.host)}:{options.port} "
            f"(ready in {time.monotonic() - began:.1f} s)",
            flush=True,
        )
        died = await _until_stop_or_death(engine, signals)
        await site.stop()
        await _drain(app, engine, signals, died)
    finally:
        await runner.cleanup()
    if died:
        print(f"error: {engine_dead(engine.dead_error).message}", file=sys.stderr, flush=True)
        return EXIT_ENGINE_DIED
    return EXIT_OK


async def _listen(site: web.SockSite, options: ServerOptions) -> None:
    try:
        await site.start()
    except OSError as error:  # another process began to listen while the model was loaded
        raise InvalidInputError("port", options.port, error.strerror or "can't be listened on") from None


async def _until_stop_or_death(engine: AsyncLLM, signals: _StopSignals) -> bool:
    """True: the engine died. False: a signal asked to stop."""
    while not engine.is_dead:
        try:
            async with asyncio.timeout(ENGINE_CHECK_S):
                await signals.wait()
            return False
        except TimeoutError:
            continue
    return True


async def _drain(app: web.Application, engine: AsyncLLM, signals: _StopSignals, died: bool) -> None:
    """Let running requests finish; what is left after the grace, or after a second signal, is told so and
    aborted.
    """
    state = app[STATE]
    inflight = state.inflight
    inflight.draining = True
    if died:
        reason = engine_dead(engine.dead_error)
        finished = await inflight.wait_idle(ABORT_GRACE_S)
    else:
        reason = shutting_down()
        signals.rearm()
        idle = asyncio.create_task(inflight.wait_idle(state.options.drain_timeout_s))
        again = asyncio.create_task(signals.wait())
        await asyncio.wait({idle, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        idle.cancel()
        finished = inflight.requests == 0
    if not finished:
        inflight.abort_all(reason)
        await inflight.wait_idle(ABORT_GRACE_S)


class _StopSignals:
    """SIGTERM and SIGINT as an event, while the ``with`` block lasts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __enter__(self) -> _StopSignals:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._event.set)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    async def wait(self) -> None:
        await self._event.wait()

    def rearm(self) -> None:
        """Wait for the next signal instead of the one that came."""
        self._event.clear()


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
