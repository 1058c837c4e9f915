"""Optional capture of Python stacks with py-spy, as a speedscope file.

py-spy stops the process for each sample: 50 a second at most. It needs to be the process's parent or the
right to trace it; where it has neither, that is said and nothing else is lost.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

STACKS = "stacks.speedscope.json"
RATE_HZ = 50


class StackSampler:
    """Context manager: samples ``pid`` and its children for up to ``seconds``.

    Args:
        pid: None: nothing to sample.
        out: the speedscope file.
    """

    def __init__(self, pid: int | None, out: Path, seconds: float) -> None:
        self._pid = pid
        self._out = out
        self._seconds = max(1, round(seconds))
        self._process: subprocess.Popen[bytes] | None = None
        self.problem: str | None = None
        """Why there is no file, or why it is incomplete."""

    def __enter__(self) -> StackSampler:
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
        if self._pid is None:
            self.problem = "py-spy: the server is not ours to trace"
        elif program is None:
            self.problem = "py-spy is not installed (pip install py-spy)"
        else:
            self._process = subprocess.Popen(
                [program, "record", "--pid", str(self._pid), "--subprocesses", "--format", "speedscope",
                 "--rate", str(RATE_HZ), "--duration", str(self._seconds), "--nonblocking",
                 "--output", str(self._out)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        return self

    def __exit__(self, *exc: object) -> None:
        process = self._process
        if process is None:
            return
        try:
            _, errors = process.communicate(timeout=self._seconds + 15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.problem = "py-spy did not end in time"
            return
        words = errors.decode("utf-8", "replace").strip().splitlines()
        behind = [line for line in words if "behind in sampling" in line]
        if process.returncode != 0:
            self.problem = f"py-spy: {words[-1] if words else process.returncode}"
        elif behind:
            self.problem = f"py-spy fell behind {len(behind)} times: the stacks have holes"
