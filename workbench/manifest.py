"""``manifest.json``: what a run was, on which machine, and how it ended (docs/architecture.md)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

MANIFEST_SCHEMA_VERSION = 1

RunStatus = Literal["running", "complete", "interrupted", "failed"]


class _Part(BaseModel):
    """Unknown keys are dropped: a newer workbench's bundle stays readable."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class TargetInfo(_Part):
    kind: Literal["builtin", "attach", "command"]
    base_url: str | None = None
    model: str | None = None
    requested: dict[str, Any] = {}
    """Settings asked for (builtin: EngineConfig fields)."""
    echo: dict[str, Any] | None = None
    """Settings in force, as the target told them; None when it does not tell."""


class SweepRef(_Part):
    """Place of a run in a sweep."""

    id: str
    level: Any
    block: int
    position: int


class ClockPair(_Part):
    """The same moment on both clocks."""

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> ClockPair:
        return cls(monotonic_ns=time.monotonic_ns(), wall_ns=time.time_ns())


class TableInfo(_Part):
    schema_version: int
    rows: int


class Manifest(_Part):
    """Everything about a run but its numbers. Rewritten whole at every change of state."""

    schema_version: int = MANIFEST_SCHEMA_VERSION
    kind: Literal["run"] = "run"
    id: str
    created: str
    name: str = ""
    tags: list[str] = []
    tool_version: str = ""
    git: dict[str, Any] | None = None
    command: list[str] = []
    target: TargetInfo
    workload: dict[str, Any] = {}
    workload_sha256: str = ""
    seed: int = 0
    nonce: str = ""
    load: dict[str, Any] = {}
    """How it was sent: rate, max_concurrency, endpoint, deadlines, what the server was found to accept."""
    machine: dict[str, Any] = {}
    clock: list[ClockPair] = []
    status: RunStatus = "running"
    error: str | None = None
    drops: dict[str, int] = {}
    notes: list[str] = []
    """What a reader of the bundle should know and what does not make the run invalid."""
    tables: dict[str, TableInfo] = {}
    sweep: SweepRef | None = None
    slo: str | None = None
    pid: int | None = None
    """Who writes it: tells a crashed run from one that is under way."""
    pid_created: float | None = None


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tool_version() -> str:
    try:
        return version("llm-serving-workbench")
    except PackageNotFoundError:
        return "unknown"


def git_info(folder: Path | None = None) -> dict[str, Any] | None:
    """Commit and dirtiness of the source tree that runs; None outside a checkout or without git."""
    folder = folder or Path(__file__).resolve().parent
    if shutil.which("git") is None:
        return None

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    status = ask("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def machine_info() -> dict[str, Any]:
    """The host as far as it decides speed. Unknown values are null."""
    import psutil

    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(logical=True),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version_of("torch"),
        "platform": sys.platform,
    }


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or None
    return platform.processor() or None
