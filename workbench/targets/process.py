"""A server process of ours: alone in its process group, waited for, and gone when we are done with it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from engine.errors import InvalidInputError
from workbench.errors import TargetError
from workbench.targets import launch

LOG_NAME = "server.log"
HOST = "127.0.0.1"
API_KEY_VARIABLE = "WORKBENCH_API_KEY"
ATTEMPTS = 3
_POLL_S = 0.05
_STOP_S = 15.0
_LEFTOVER_S = 3.0
_USAGE = 2


class PortTakenError(Exception):
    """Somebody took the port between our look and the server's bind."""


class ServerProcess:
    """Started by :meth:`spawn`; :meth:`stop` ends it and all that it started."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of the run; the log goes there."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def log(self) -> Path:
        return self._folder / LOG_NAME

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command`` in a session of its own; it ends when this process ends.

        Raises:
            TargetError: it can't be started.
        """
        words = [sys.executable, launch.__file__, str(os.getpid()), *command]
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=dict(environment),
                )
        except OSError as error:
            raise TargetError(f"the server could not be started: {error}") from None

    def wait_ready(self, port: int, timeout_s: float, paths: Sequence[str] = ("/health",)) -> None:
        """Wait until one of ``paths`` answers 200.

        Raises:
            PortTakenError: another port would do.
            TargetError: it ended, or was not ready in time; the last line of its log is the reason.
        """
        process = self._process
        if process is None:
            raise TargetError("the server was not started")
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise self._early_end(process.returncode)
            if any(_answers(port, path) for path in paths):
                return
            time.sleep(_POLL_S)
        raise TargetError(
            f"the server was not ready after {timeout_s:g} s: {self._last_line()} (log: {self.log})"
        )

    def _early_end(self, code: int) -> Exception:
        line = self._last_line()
        if "address already in use" in line.lower():
            return PortTakenError()
        if code == _USAGE and line.startswith("error: "):
            # The server's own words about bad input.
            error = TargetError(line.removeprefix("error: "))
            error.exit_code = _USAGE
            return error
        return TargetError(f"the server did not start ({_ending(code)}): {line} (log: {self.log})")

    def death(self) -> str | None:
        """One line when the server has ended by itself."""
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

    def _last_line(self) -> str:
        lines = tail(self.log)
        errors = [line for line in lines if line.startswith("error:")]
        return (errors or lines or ["it wrote nothing"])[-1]


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, 0))
        except OSError as error:
            raise InvalidInputError("port", 0, f"a free port on {HOST} ({error.strerror})") from None
        port: int = probe.getsockname()[1]
        return port


def inherited_environment() -> dict[str, str]:
    """Ours without the key, which is for servers of others."""
    return {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}


def tail(path: Path, limit: int = 8192) -> list[str]:
    """Last non-empty lines of a log."""
    try:
        with path.open("rb") as file:
            _seek_end(file, limit)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _end_group(group: int) -> None:
    """End what the server may have left behind: its children are in its group. They get a moment to finish
    their trace."""
    deadline = time.monotonic() + _LEFTOVER_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)


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


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
