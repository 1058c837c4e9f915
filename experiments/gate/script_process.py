"""One script inside a revision, in a fresh process: start it, give it turns, read its answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.gate.arms import environment_of
from experiments.gate.models import Side, Unusable


class ScriptProcess:
    """A fresh process in a group of its own; gone when the block is left."""

    def __init__(
        self, side: Side, script: Path, specification: Mapping[str, Any], *, turns: bool = False
    ) -> None:
        """
        Args:
            specification: with its ``sha256``, which the answer must repeat.
            turns: the script waits for turns, see ``scripts/baton.py``.
        """
        self.side = side
        self._name = script.stem
        self._file = script
        self._specification = specification
        self._turns = turns
        self._open = contextlib.ExitStack()

    def __enter__(self) -> ScriptProcess:
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-")))
            self._answer = scratch / "answer.json"
            self._errors = scratch / "errors.txt"
            theirs: list[int] = []
            if self._turns:
                allowed, self._allow = os.pipe()
                self._over, over = os.pipe()
                for descriptor in (self._allow, self._over):
                    stack.callback(os.close, descriptor)
                theirs = [allowed, over]
            try:
                with self._errors.open("wb") as errors:
                    self._process = subprocess.Popen(
                        [self.side.python, str(self._file), str(self._answer), *map(str, theirs)],
                        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, pass_fds=theirs,
                        cwd=self.side.folder, env=environment_of(self.side), start_new_session=True,
                    )  # fmt: skip
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            stack.callback(self._end)
            self._open = stack.pop_all()
        assert self._process.stdin is not None
        # A process that has died already says so in its answer.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(self._specification).encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def allow(self) -> None:
        """Let it take its next turn."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._allow, b".")

    def is_over(self, until: float) -> bool:
        """Wait for the end of its turn; False: it will take none any more.

        Raises:
            Unusable: nothing by ``until`` (``time.monotonic``).
        """
        if not select.select([self._over], [], [], max(0.0, until - time.monotonic()))[0]:
            raise Unusable(f"{self.side.name}: {self._name} did not end its turn in time")
        return bool(os.read(self._over, 1))

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Raises:
        Unusable: it failed, ran out of time, wrote nothing readable, answered something else, or measured
            another engine than the side's.
        """
        name = f"{self.side.name}: {self._name}"
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Unusable(f"{name} gave no answer in {timeout_s:g} s") from None
        if code != 0:
            text = self._errors.read_text(encoding="utf-8", errors="replace")
            lines = text.strip().splitlines() or ["it gave no reason"]
            how = f"exit {code}" if code > 0 else f"signal {-code}"
            raise Unusable(f"{name} failed ({how}): {lines[-1]}")
        return read_answer(self.side, self._name, self._answer, self._specification)


def read_answer(side: Side, script: str, path: Path, specification: Mapping[str, Any]) -> dict[str, Any]:
    """Raises:
    Unusable: as :meth:`ScriptProcess.answer`.
    """
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unusable(f"{side.name}: {script} left no readable answer ({type(error).__name__})") from None
    if not isinstance(answer, dict) or answer.get("specification_sha256") != specification["sha256"]:
        raise Unusable(f"{side.name}: {script} answered another specification")
    if answer.get("engine") != side.folder:
        raise Unusable(
            f"{side.name}: {script} measured the engine in {answer.get('engine')}, not in {side.folder}"
        )
    return answer
