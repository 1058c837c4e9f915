"""The builtin engine: a fresh server process per run, alone in its process group, gone when the run is."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from workbench.errors import TargetError
from workbench.manifest import TargetInfo
from workbench.targets import launch

LOG_NAME = "server.log"
API_KEY_VARIABLE = "WORKBENCH_API_KEY"
TRACE_FOLDER = "trace"
_POLL_S = 0.05
_STOP_S = 15.0
_DRAIN_S = 1.0
_LEFTOVER_S = 3.0
_ATTEMPTS = 3
_HOST = "127.0.0.1"


class BuiltinTarget:
    """``python -m engine.server`` on a free port of the loopback, its log and trace in the run's folder."""

    def __init__(self, engine: Mapping[str, Any], folder: Path, ready_timeout_s: float) -> None:
        """
        Args:
            engine: fields of :class:`EngineConfig`; checked here, before anything starts.
            folder: the run's folder.
            ready_timeout_s: how long the server may take to load and answer ``/health``.

        Raises:
            InvalidInputError: a setting the engine does not accept.
        """
        self._folder = folder.resolve()
        config = EngineConfig.create(**{**engine, "trace_dir": str(self._folder / TRACE_FOLDER)})
        self._config = config.model_dump(mode="json", exclude_unset=True)
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self.base_url = ""
        requested = {name: value for name, value in self._config.items() if name != "trace_dir"}
        self.info = TargetInfo(kind="builtin", model=config.model, requested=requested)

    @property
    def trace_folder(self) -> Path:
        return self._folder / TRACE_FOLDER

    def __enter__(self) -> BuiltinTarget:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def death(self) -> str | None:
        process = self._process
        if process is None or self._stopping or process.poll() is None:
            return None
        return f"the server ended by itself ({_ending(process.returncode)}): {self._last_line()}"

    def stop(self) -> None:
        """TERM, then KILL, to the whole group; returns when the server is gone."""
        process, self._stopping = self._process, True
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _end_group(process.pid)

    def _start(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            port = _free_port()
            self._spawn(port)
            try:
                self._wait_ready(port)
            except _PortTakenError:
                # Somebody took it between our look and the server's bind.
                if attempt == _ATTEMPTS:
                    raise TargetError(f"the server found no free port on {_HOST}") from None
                continue
            self.base_url = f"http://{_HOST}:{port}"
            self.info = self.info.model_copy(update={"base_url": self.base_url})
            return

    def _spawn(self, port: int) -> None:
        command = [
            sys.executable,
            launch.__file__,
            str(os.getpid()),
            sys.executable,
            "-m",
            "engine.server",
            "--config-json",
            json.dumps(self._config),
            "--host",
            _HOST,
            "--port",
            str(port),
            "--drain-timeout-s",
            str(_DRAIN_S),
        ]
        with (self._folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )

    def _wait_ready(self, port: int) -> None:
        process = self._process
        if process is None:
            raise TargetError("the server was not started")
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                line = self._last_line()
                if "address already in use" in line.lower():
                    raise _PortTakenError
                if process.returncode == 2:
                    # The server's own words about bad input.
                    error = TargetError(line.removeprefix("error: "))
                    error.exit_code = 2
                    raise error
                raise TargetError(
                    f"the server did not start ({_ending(process.returncode)}): {line} "
                    f"(log: {self._folder / LOG_NAME})"
                )
            if _healthy(port):
                return
            time.sleep(_POLL_S)
        raise TargetError(
            f"the server was not ready after {self._ready_timeout_s:g} s: {self._last_line()} "
            f"(log: {self._folder / LOG_NAME})"
        )

    def _last_line(self) -> str:
        lines = tail(self._folder / LOG_NAME)
        errors = [line for line in lines if line.startswith("error:")]
        return (errors or lines or ["it wrote nothing"])[-1]


def _end_group(group: int) -> None:
    """End what the server may have left behind: its children are in its group. They get a moment to finish
    their trace."""
    deadline = time.monotonic() + _LEFTOVER_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)


class _PortTakenError(Exception):
    pass


def tail(path: Path, limit: int = 8192) -> list[str]:
    """Last non-empty lines of a log."""
    try:
        with path.open("rb") as file:
            _seek_end(file, limit)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _seek_end(file: IO[bytes], limit: int) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=2.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, 0))
        except OSError as error:
            raise InvalidInputError("port", 0, f"a free port on {_HOST} ({error.strerror})") from None
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    # The user's folder must not shadow our packages by a folder of the same name; a key is for servers of
    # others.
    inherited = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    return {**inherited, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
