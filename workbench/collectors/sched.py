"""What the Linux scheduler knows: who waited for a core, how much pressure there is, who was throttled.

Run-queue wait (``schedstat``) is the best sign of a starved thread: it wanted to run and could not. Some
kernels and containers do not count it; then it is null and says so, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from workbench.collectors.procfs import ProcFile, field, read_once

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


class _Thread:
    """A thread of a watched process, with its counters when it was read last."""

    __slots__ = ("cpu_ns", "file", "folder", "idle", "read_ns", "source", "wait_ns")

    def __init__(self, folder: str, source: str) -> None:
        self.folder = folder
        self.source = source
        self.file = ProcFile(f"{folder}/schedstat")
        self.cpu_ns = 0
        self.wait_ns: int | None = None
        self.read_ns: int | None = None
        self.idle = False

    def read(self) -> bool:
        """Take the counters; False when the thread has ended. The wait is None where nothing counts it."""
        words = self.file.read().split()
        if len(words) >= 2 and words[0] != b"0":
            self.cpu_ns, self.wait_ns = int(words[0]), int(words[1])
            return True
        words = read_once(f"{self.folder}/stat").rpartition(b")")[2].split()
        if len(words) < 13:
            return False
        self.cpu_ns, self.wait_ns = (int(words[11]) + int(words[12])) * 10_000_000, None
        return True


class _Watched:
    """A process of the server: its threads, and its counter of involuntary switches."""

    __slots__ = ("status", "switches", "switches_ns", "threads")

    def __init__(self, folder: str) -> None:
        self.status = ProcFile(f"{folder}/status")
        self.switches: int | None = None
        self.switches_ns = 0
        self.threads: dict[int, _Thread] = {}


class SchedProbe:
    """Turns counters of ``/proc`` and of the control group into shares between two samples.

    A thread that was idle when it was read last is read again every ``scan_every`` samples only, when new
    threads are looked for, too; its share is then over all this time.

    Args:
        proc: root of procfs.
        cgroup: root of the control groups (version 2, or version 1 with a ``cpu`` folder).
        scan_every: samples between two looks at all threads.
    """

    def __init__(
        self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), *, scan_every: int = 1
    ) -> None:
        self._proc = proc
        folder = _cgroup_folder(proc, cgroup)
        self._pressure_file = ProcFile(proc / "pressure" / "cpu")
        self._throttled_file = ProcFile(folder / "cpu.stat") if folder else None
        self._scan_every = scan_every
        self._samples = 0
        self._watched: dict[int, _Watched] = {}
        self._pressure: int | None = None
        self._throttled: int | None = None
        self._last_ns: int | None = None

    def sample(self, now_ns: int, pids: Iterable[int]) -> list[Sample]:
        """Samples since the last call; the first call only takes the counters."""
        before, self._last_ns = self._last_ns, now_ns
        passed = now_ns - before if before is not None else None
        pids = list(pids)
        for gone in self._watched.keys() - set(pids):
            del self._watched[gone]
        scan = self._samples % self._scan_every == 0
        self._samples += 1
        found = self._system(passed)
        for pid in pids:
            new = pid not in self._watched
            watched = self._watched.setdefault(pid, _Watched(f"{self._proc}/{pid}"))
            if scan or new:
                found += _involuntary(pid, watched, now_ns)
                self._look_for_threads(pid, watched)
            found += _shares(watched, now_ns, scan)
        return [*found, *self._wait_of_all(passed)]

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
        line = self._pressure_file.read().partition(b"\n")[0]
        value = line.rpartition(b"total=")[2]
        return int(value) if line.startswith(b"some") and value.isdigit() else None

    def _read_throttled(self) -> int | None:
        """ns for which the group's quota stopped it; None without a quota."""
        if self._throttled_file is None:
            return None
        text = self._throttled_file.read()
        number = field(text, b"throttled_usec")
        return field(text, b"throttled_time") if number is None else number * 1000

    # ---- processes and threads

    def _wait_of_all(self, passed: int | None) -> list[Sample]:
        """One line says it where the kernel does not count run-queue waits."""
        mine = [thread for watched in self._watched.values() for thread in watched.threads.values()]
        if passed and mine and all(thread.wait_ns is None for thread in mine):
            return [Sample("server.thread.run_wait", None, "%", SOURCE, "not_supported")]
        return []

    def _look_for_threads(self, pid: int, watched: _Watched) -> None:
        folder = f"{self._proc}/{pid}/task"
        try:
            tasks = {int(task) for task in os.listdir(folder)}
        except OSError:
            tasks = set()
        for gone in watched.threads.keys() - tasks:
            del watched.threads[gone]
        for task in sorted(tasks - watched.threads.keys()):
            comm = read_once(f"{folder}/{task}/comm").decode(errors="replace").strip()
            watched.threads[task] = _Thread(f"{folder}/{task}", f"pid {pid} tid {task} {comm}")


def _involuntary(pid: int, watched: _Watched, now_ns: int) -> list[Sample]:
    count = field(watched.status.read(), b"nonvoluntary_ctxt_switches:")
    before, before_ns = watched.switches, watched.switches_ns
    watched.switches, watched.switches_ns = count, now_ns
    if count is None or before is None or now_ns <= before_ns:
        return []
    rate = (count - before) / (now_ns - before_ns) * 1e9
    return [Sample("server.process.ctx_switches_involuntary", rate, "1/s", f"pid {pid}", "ok")]


def _shares(watched: _Watched, now_ns: int, scan: bool) -> list[Sample]:
    """CPU and run-queue wait of the threads that are read in this sample and are not idle."""
    found = []
    for tid, thread in list(watched.threads.items()):
        if thread.idle and not scan:
            continue
        cpu_ns, wait_ns, read_ns = thread.cpu_ns, thread.wait_ns, thread.read_ns
        if not thread.read():
            del watched.threads[tid]
            continue
        thread.read_ns = now_ns
        if read_ns is None or now_ns <= read_ns:
            continue
        passed = now_ns - read_ns
        cpu = 100.0 * (thread.cpu_ns - cpu_ns) / passed
        wait = None
        if thread.wait_ns is not None and wait_ns is not None:
            wait = 100.0 * (thread.wait_ns - wait_ns) / passed
        thread.idle = max(cpu, wait or 0.0) < _MIN_SHARE
        if thread.idle:
            thread.file.close()  # a server has hundreds of them, and descriptors are scarce
            continue
        found.append(Sample("server.thread.cpu", cpu, "%", thread.source, "ok"))
        if wait is not None:
            found.append(Sample("server.thread.run_wait", wait, "%", thread.source, "ok"))
    return found


def _cgroup_folder(proc: Path, root: Path) -> Path | None:
    """Where this process's group keeps ``cpu.stat``; None when it can't be seen."""
    for line in read_once(proc / "self" / "cgroup").decode(errors="replace").splitlines():
        number, controllers, place = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            candidates = [root / place.lstrip("/"), root / "unified" / place.lstrip("/")]
        elif "cpu" in controllers.split(","):
            candidates = [root / "cpu" / place.lstrip("/")]
        else:
            continue
        for folder in candidates:
            if b"throttled" in read_once(folder / "cpu.stat"):
                return folder
    return None


def _share(name: str, before: int | None, now: int | None, scale_ns: int, passed: int) -> Sample:
    if before is None or now is None:
        return Sample(name, None, "%", SOURCE, "not_supported")
    return Sample(name, 100.0 * (now - before) * scale_ns / passed, "%", SOURCE, "ok")
