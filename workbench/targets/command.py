"""Any other server, started by a command line: vLLM, SGLang, or what the user gives."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine.errors import InvalidInputError
from workbench.errors import TargetError
from workbench.manifest import TargetInfo
from workbench.targets.process import (
    ATTEMPTS,
    HOST,
    PortTakenError,
    ServerProcess,
    free_port,
    inherited_environment,
)

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_READY_PATHS = ("/health", "/v1/models")


class ServerCommand(BaseModel):
    """How to start a server. ``argv`` holds ``{port}`` still; the run puts a free one in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    requested: dict[str, Any] = {}
    """Settings under the server's own names, compared with what it tells of itself."""
    title: str = "command"

    @classmethod
    def parse(
        cls, text: str, values: dict[str, str], *, requested: dict[str, Any] | None = None, title: str = ""
    ) -> ServerCommand:
        """Split a command line as a shell would and put ``values`` in the place of ``{name}``.

        Words ``NAME=VALUE`` before the program go into its environment. No shell runs: pipes and
        ``$VARIABLES`` are plain text.

        Raises:
            InvalidInputError: no such program, no ``{port}``, or a placeholder that nobody knows.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InvalidInputError("target-command", text, f"a command line ({error})") from None
        environment: dict[str, str] = {}
        while words and _ASSIGNMENT.fullmatch(words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = _fill(value, values)
        if not words:
            raise InvalidInputError("target-command", text, "a program to start")
        argv = tuple(_fill(word, values) for word in words)
        if not any("{port}" in word for word in argv):
            raise InvalidInputError(
                "target-command", text, "a command with {port}: each run takes a free one"
            )
        if shutil.which(argv[0], path=environment.get("PATH")) is None:
            raise InvalidInputError("target-command", argv[0], "a program on the PATH, or a path to one")
        return cls(
            argv=argv, environment=environment, requested=requested or {}, title=title or Path(argv[0]).name
        )


def placeholders(text: str) -> set[str]:
    """Names in braces."""
    return set(_PLACEHOLDER.findall(text))


def _fill(word: str, values: dict[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name == "port":
            return match[0]
        if name not in values:
            known = ", ".join(f"{{{known}}}" for known in ["port", *values])
            raise InvalidInputError("target-command", match[0], f"one of {known}")
        return values[name]

    return _PLACEHOLDER.sub(put, word)


class CommandTarget:
    """A server started by ``command`` on a free port of the loopback, its log in the run's folder."""

    def __init__(
        self, command: ServerCommand, folder: Path, ready_timeout_s: float, model: str | None
    ) -> None:
        """``model``: name in the API; None: the first that the server lists."""
        self._command = command
        self._ready_timeout_s = ready_timeout_s
        self._server = ServerProcess(folder.resolve())
        self.base_url = ""
        self.info = TargetInfo(kind="command", model=model, requested=command.requested)

    def __enter__(self) -> CommandTarget:
        try:
            self._start()
        except BaseException:
            self._server.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    def pids(self) -> list[int]:
        return self._server.pids()

    def death(self) -> str | None:
        return self._server.death()

    def _start(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            port = free_port()
            argv = [word.replace("{port}", str(port)) for word in self._command.argv]
            self._server.spawn(argv, {**inherited_environment(), **self._command.environment})
            try:
                self._server.wait_ready(port, self._ready_timeout_s, _READY_PATHS)
            except PortTakenError:
                if attempt == ATTEMPTS:
                    raise TargetError(f"the server found no free port on {HOST}") from None
                continue
            self.base_url = f"http://{HOST}:{port}"
            self.info = self.info.model_copy(update={"base_url": self.base_url})
            return
