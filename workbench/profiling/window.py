"""Asks a server under load to profile a window: ``/start_profile`` some seconds in, ``/stop_profile`` at the
end. Works with the builtin engine and with others that have vLLM's two endpoints.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from engine.executor.limits import MAX_SECONDS, MAX_STEPS
from workbench.load.progress import BenchProgress, ProgressCallback
from workbench.profiling.stacks import STACKS, StackSampler

_TIMEOUT_S = 30.0


class ProfileWindow(BaseModel):
    """When to profile, and how much: the window ends at the first bound that is reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after_s: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """Seconds into the load."""
    num_steps: int = Field(default=50, ge=1, le=MAX_STEPS)
    max_seconds: float = Field(default=10.0, gt=0, le=MAX_SECONDS, allow_inf_nan=False)
    py_spy: bool = False
    """Also sample the stacks of the server's processes with py-spy (``stacks.speedscope.json``)."""


class ProfileSession:
    """Context manager around the load of one run; without a window it does nothing.

    Args:
        window: what to profile.
        base_url: of the server.
        pids: the server's processes, for the stacks; empty when they are not ours.
        folder: the run's.
        headers: sent along (a key).
    """

    def __init__(
        self,
        window: ProfileWindow | None,
        base_url: str,
        pids: Sequence[int],
        folder: Path,
        headers: Mapping[str, str],
    ) -> None:
        self._window = window
        self._base_url = base_url
        self._pid = pids[0] if pids else None
        self._folder = folder
        self._headers = {"Content-Type": "application/json", **headers}
        self._began = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profile-session", daemon=True)
        self.problems: list[str] = []
        """Why there is no profile, or no stacks; empty when all went well."""

    def __enter__(self) -> ProfileSession:
        if self._window is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._began.set()
        if self._window is not None:
            self._thread.join()

    @property
    def active(self) -> bool:
        """The run is a profiled one: its own numbers are distorted."""
        return self._window is not None

    def load_began(self) -> None:
        """The window's clock starts."""
        self._began.set()

    def watch(self, progress: ProgressCallback | None) -> ProgressCallback:
        """``progress``, listened to: :meth:`load_began` with the first measured request."""

        def forward(news: BenchProgress) -> None:
            if news.phase == "measuring":
                self.load_began()
            if progress is not None:
                progress(news)

        return forward

    def _run(self) -> None:
        window = self._window
        self._began.wait()
        if window is None or self._ended.wait(window.after_s):
            self.problems.append("profile: the load ended before the window was to begin")
            return
        pid = self._pid if window.py_spy else None
        with StackSampler(pid, self._folder / STACKS, window.max_seconds) as stacks:
            body = {"num_steps": window.num_steps, "max_seconds": window.max_seconds}
            refused = self._post("/start_profile", body)
            if refused is None:
                self._ended.wait()
                refused = self._post("/stop_profile", None)
        self.problems += [refused] if refused is not None else []
        if window.py_spy and stacks.problem is not None:
            self.problems.append(stacks.problem)

    def _post(self, path: str, body: dict[str, float] | None) -> str | None:
        """None when it went well, else one line."""
        parts = urlsplit(self._base_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request("POST", parts.path.rstrip("/") + path, data, self._headers)
            answer = connection.getresponse()
            text = answer.read(2000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return f"profile: {path}: {error}"
        finally:
            connection.close()
        return None if answer.status < 300 else f"profile: {path} answered {answer.status}: {text[:200]}"
