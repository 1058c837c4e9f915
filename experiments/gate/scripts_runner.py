"""Run a script inside a revision and take its answer, or say why there is none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol

from experiments.gate.arms import environment_of
from experiments.gate.models import Side, Unusable

SCRIPTS = Path(__file__).with_name("scripts")


class RunScript(Protocol):
    """Run ``script`` inside ``side`` on ``specification``; tests put another one in."""

    def __call__(
        self, side: Side, script: str, specification: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]: ...


def run_script(
    side: Side, script: str, specification: dict[str, Any], timeout_s: float, *, scripts: Path | None = None
) -> dict[str, Any]:
    """A fresh process in a group of its own; gone when this returns.

    Args:
        script: its name in ``scripts/``; always this revision's, on both sides.
        specification: with its ``sha256``, which the answer must repeat.
        scripts: another folder of scripts, for trying out what the gate does with broken ones.

    Raises:
        Unusable: it failed, ran out of time, wrote nothing readable, answered something else, or measured
            another engine than the side's.
    """
    with tempfile.TemporaryDirectory(prefix="gate-") as scratch:
        path = Path(scratch) / "answer.json"
        process = subprocess.Popen(
            [side.python, str((scripts or SCRIPTS) / f"{script}.py"), str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            cwd=side.folder, env=environment_of(side), start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = process.communicate(json.dumps(specification), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise Unusable(f"{side.name}: {script} gave no answer in {timeout_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            lines = errors.strip().splitlines() or ["it gave no reason"]
            how = f"exit {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
            raise Unusable(f"{side.name}: {script} failed ({how}): {lines[-1]}")
        return read_answer(side, script, path, specification)


def read_answer(side: Side, script: str, path: Path, specification: dict[str, Any]) -> dict[str, Any]:
    """Raises:
    Unusable: as :func:`run_script`.
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
