"""What the Linux scheduler knows: who waited for a core, how much pressure there is, who was throttled.

Run-queue wait (``schedstat``) is the best sign of a starved thread: it wanted to run and could not. Some
kernels and containers do not count it; then it is null and says so, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SOURCE = "proc"
_MIN_SHARE = 1.0
"""Threads that use or wait for less (% of a core) are left out: a server has dozens of idle ones."""


class Sample(NamedTuple):
    """One value; ``status`` as in :data:`workbench.records.TELEMETRY`."""

    name: str
    value: float | None
    unit: str
    source: str
    status: str


@dataclass(frozen=True, slots=True)
class _Thread:
    comm: str
    cpu_ns: int
    wait_ns: int | None


class SchedProbe:
    """Turns counters of ``/proc`` and of the control group into shares between two samples.

    Args:
        proc: root of procfs.
        cgroup: root of the control groups (version 2, or version 1 with a ``cpu`` folder).
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroup = _cgroup_folder(proc, cgroup)
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._pressure: int | None = None
        self._throttled: int | None = None
        self._switches: dict[int, int] = {}
        self._last_ns: int | None = None

    def sample(self, now_ns: int, pids: Iterable[int]) -> list[Sample]:
        """Samples since the last call; the first call only takes the counters."""
        before, self._last_ns = self._last_ns, now_ns
        passed = now_ns - before if before is not None else None
        pids = list(pids)
        return [
            *self._system(passed),
            *(found for pid in pids for found in self._process(pid, passed)),
            *self._wait_of_all(pids, passed),
        ]

    # ---- host and control group

    def _system(self, passed: int | None) -> list[Sample]:
        pressure, throttled = self._read_pressure(), self._read_throttled()
        before, self._pressure = self._pressure, pressure
        was, self._throttled = self._throttled, throttled
        if passed is None:
            return []
        return [
            _share("system.cpu_pressure", before, pressure, 1000, passed),
            _share("system.cgroup_throttled", was, throttled, 1, passed),
        ]

    def _read_pressure(self) -> int | None:
        """µs in which some task waited for a core."""
        for line in _read(self._proc / "pressure" / "cpu").splitlines():
            if line.startswith("some"):
                return _number(line.rpartition("total=")[2])
        return None

    def _read_throttled(self) -> int | None:
        """ns for which the group's quota stopped it; None without a quota."""
        if self._cgroup is None:
            return None
        for line in _read(self._cgroup / "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == "throttled_usec":
                number = _number(value)
                return None if number is None else number * 1000
            if key == "throttled_time":
                return _number(value)
        return None

    # ---- processes and threads

    def _process(self, pid: int, passed: int | None) -> list[Sample]:
        found = []
        count = self._read_switches(pid)
        before = self._switches.get(pid)
        if count is not None:
            self._switches[pid] = count
            if before is not None and passed:
                rate = (count - before) / passed * 1e9
                found.append(
                    Sample("server.process.ctx_switches_involuntary", rate, "1/s", f"pid {pid}", "ok")
                )
        for tid, thread in self._read_threads(pid):
            old = self._threads.get((pid, tid))
            self._threads[pid, tid] = thread
            if old is None or not passed:
                continue
            source = f"pid {pid} tid {tid} {thread.comm}"
            cpu = 100.0 * (thread.cpu_ns - old.cpu_ns) / passed
            wait = None
            if thread.wait_ns is not None and old.wait_ns is not None:
                wait = 100.0 * (thread.wait_ns - old.wait_ns) / passed
            if max(cpu, wait or 0.0) < _MIN_SHARE:
                continue
            found.append(Sample("server.thread.cpu", cpu, "%", source, "ok"))
            if wait is not None:
                found.append(Sample("server.thread.run_wait", wait, "%", source, "ok"))
        return found

    def _wait_of_all(self, pids: list[int], passed: int | None) -> list[Sample]:
        """One line says it where the kernel does not count run-queue waits."""
        if not pids or not passed:
            return []
        mine = [thread for (pid, _), thread in self._threads.items() if pid in pids]
        if mine and all(thread.wait_ns is None for thread in mine):
            return [Sample("server.thread.run_wait", None, "%", SOURCE, "not_supported")]
        return []

    def _read_threads(self, pid: int) -> list[tuple[int, _Thread]]:
        found = []
        folder = f"{self._proc}/{pid}/task"
        try:
            tasks = os.listdir(folder)
        except OSError:
            return []
        for task in tasks:
            fields = _read(f"{folder}/{task}/stat")
            head, _, rest = fields.rpartition(")")
            values = rest.split()
            if len(values) < 13:
                continue
            ticks_ns = (int(values[11]) + int(values[12])) * 10_000_000
            cpu, wait = _schedstat(f"{folder}/{task}/schedstat", ticks_ns)
            found.append((int(task), _Thread(head.partition("(")[2], cpu, wait)))
        return found

    def _read_switches(self, pid: int) -> int | None:
        for line in _read(self._proc / str(pid) / "status").splitlines():
            if line.startswith("nonvoluntary_ctxt_switches:"):
                return _number(line.partition(":")[2])
        return None


def _schedstat(path: str, ticks_ns: int) -> tuple[int, int | None]:
    """(on-CPU ns, run-queue wait ns); the wait is None where the kernel counts nothing."""
    values = _read(path).split()
    if len(values) < 2:
        return ticks_ns, None
    cpu, wait = int(values[0]), int(values[1])
    if cpu == 0:
        return ticks_ns, None
    return cpu, wait


def _cgroup_folder(proc: Path, root: Path) -> Path | None:
    """Where this process's group keeps ``cpu.stat``; None when it can't be seen."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, controllers, place = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            candidates = [root / place.lstrip("/"), root / "unified" / place.lstrip("/")]
        elif "cpu" in controllers.split(","):
            candidates = [root / "cpu" / place.lstrip("/")]
        else:
            continue
        for folder in candidates:
            if "throttled" in _read(folder / "cpu.stat"):
                return folder
    return None


def _share(name: str, before: int | None, now: int | None, scale_ns: int, passed: int) -> Sample:
    if before is None or now is None:
        return Sample(name, None, "%", SOURCE, "not_supported")
    return Sample(name, 100.0 * (now - before) * scale_ns / passed, "%", SOURCE, "ok")


def _read(path: str | Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    word = text.strip()
    return int(word) if word.isdigit() else None
