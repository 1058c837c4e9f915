"""The builtin engine: a fresh server process per run, alone in its process group, gone when the run is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
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

TRACE_FOLDER = "trace"
_DRAIN_S = 1.0


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
        self._server = ServerProcess(self._folder)
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
            self._server.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    def pids(self) -> list[int]:
        return self._server.pids()

    def death(self) -> str | None:
        return self._server.death()

    def stop(self) -> None:
        self._server.stop()

    def _start(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            port = free_port()
            # The user's folder must not shadow our packages by a folder of the same name.
            self._server.spawn(
                self._command(port),
                {**inherited_environment(), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
            )
            try:
                self._server.wait_ready(port, self._ready_timeout_s)
            except PortTakenError:
                if attempt == ATTEMPTS:
                    raise TargetError(f"the server found no free port on {HOST}") from None
                continue
            self.base_url = f"http://{HOST}:{port}"
            self.info = self.info.model_copy(update={"base_url": self.base_url})
            return

    def _command(self, port: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "engine.server",
            "--config-json",
            json.dumps(self._config),
            "--host",
            HOST,
            "--port",
            str(port),
            "--drain-timeout-s",
            str(_DRAIN_S),
        ]
