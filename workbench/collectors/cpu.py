"""CPU telemetry: a thread that samples the host, this client and the server's processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa

from workbench.collectors.procfs import ProcessTree, ProcFile, field
from workbench.collectors.sched import SOURCE, SchedProbe
from workbench.records import TELEMETRY

INTERVAL_S = 0.5
"""More often would show in the client's own lag, and in the server's."""
TREE_EVERY = 10
"""Samples between two looks for new processes and threads of the server."""
SLOW_EVERY = 4
"""Samples between two readings of what changes slowly: memory, frequency, load."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

Row = tuple[int, str, float | None, str, str, str]


class _Process:
    """A process of the server: its name, and what it had used when it was read last."""

    __slots__ = ("cpu_s", "read_ns", "source", "stat")

    def __init__(self, pid: int, name: str) -> None:
        self.source = f"pid {pid} {name}"
        self.stat = ProcFile(f"/proc/{pid}/stat")
        self.cpu_s = 0.0
        self.read_ns = 0


class CpuSampler:
    """Context manager; afterwards :meth:`table` is ``telemetry_cpu.parquet``.

    Names: ``system.*`` (whole host), ``client.*`` (this process), ``server.*`` (sum over the server's
    process tree) and
    ``server.process.*`` (one each, ``source`` tells which). CPU shares are in % of one core, so 200 is two
    cores. A sample costs little CPU because files stay open, idle threads are read now and then only, and
    what changes slowly is read every :data:`SLOW_EVERY` samples.
    """

    def __init__(self, server_pids: Callable[[], list[int]], interval_s: float = INTERVAL_S) -> None:
        self._server_pids = server_pids
        self._interval_s = interval_s
        self._rows: list[Row] = []
        self._processes: dict[int, _Process] = {}
        self._tree = ProcessTree()
        self._samples = 0
        self._stat, self._memory = ProcFile("/proc/stat"), ProcFile("/proc/meminfo")
        self._own_memory = ProcFile("/proc/self/statm")
        self._host: tuple[int, int | None, tuple[int, ...]] | None = None
        self._client: tuple[int, int] = (time.monotonic_ns(), time.process_time_ns())
        self._sched = SchedProbe(scan_every=TREE_EVERY)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-sampler", daemon=True)

    def __enter__(self) -> CpuSampler:
        # The first reading of a share has nothing to compare with: take it now and drop it.
        self._host = self._read_host(time.monotonic_ns())
        self._client = (time.monotonic_ns(), time.process_time_ns())
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def table(self) -> pa.Table:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(TELEMETRY)
        return pa.Table.from_arrays(
            [pa.array(list(c), type=f.type) for c, f in zip(columns, TELEMETRY, strict=True)],
            schema=TELEMETRY,
        )

    def mean(self, name: str) -> float | None:
        """Mean of all good samples of ``name``."""
        values = [row[2] for row in self._rows if row[1] == name and row[2] is not None]
        return sum(values) / len(values) if values else None

    def _run(self) -> None:
        next_s = time.monotonic() + self._interval_s
        while not self._stop.wait(max(0.0, next_s - time.monotonic())):
            self._sample()
            next_s = max(next_s + self._interval_s, time.monotonic())

    def _sample(self) -> None:
        now_ns = time.monotonic_ns()
        self._system(now_ns)
        before_ns, before = self._client
        self._client = (now_ns, time.process_time_ns())
        if now_ns > before_ns:
            self._add(now_ns, "client.cpu", 100.0 * (self._client[1] - before) / (now_ns - before_ns), "%")
        if self._samples % SLOW_EVERY == 0:
            self._slow(now_ns)
        self._server(now_ns)
        for one in self._sched.sample(now_ns, list(self._processes)):
            self._rows.append((now_ns, *one))
        self._samples += 1

    def _read_host(self, now_ns: int) -> tuple[int, int | None, tuple[int, ...]]:
        """(now, context switches, ticks: user nice system idle iowait irq softirq steal)."""
        text = self._stat.read()
        first = text.partition(b"\n")[0].split()
        return now_ns, field(text, b"ctxt "), tuple(map(int, first[1:9]))

    def _system(self, now_ns: int) -> None:
        before, after = self._host, self._read_host(now_ns)
        self._host = after
        if before is None:
            return
        ticks = [b - a for a, b in zip(before[2], after[2], strict=False)]
        total = sum(ticks)
        busy = steal = None
        if total > 0 and len(ticks) == 8:
            busy, steal = 100.0 * (total - ticks[3] - ticks[4]) / total, 100.0 * ticks[7] / total
        # Idle and waiting may count backwards by a tick.
        self._add(now_ns, "system.cpu_busy", None if busy is None else min(max(busy, 0.0), 100.0), "%")
        self._add(now_ns, "system.cpu_steal", None if steal is None else max(steal, 0.0), "%")
        if before[1] is not None and after[1] is not None and now_ns > before[0]:
            rate = (after[1] - before[1]) / (now_ns - before[0]) * 1e9
            self._add(now_ns, "system.ctx_switches", rate, "1/s")

    def _slow(self, now_ns: int) -> None:
        self._add(now_ns, "system.load1", os.getloadavg()[0], "processes")
        available = field(self._memory.read(), b"MemAvailable:")
        self._add(now_ns, "system.memory_available", None if available is None else available * 1024, "bytes")
        frequency = psutil.cpu_freq()
        self._add(now_ns, "system.cpu_freq", frequency.current if frequency else None, "MHz", "psutil")
        pages = self._own_memory.read().split()
        self._add(now_ns, "client.rss", int(pages[1]) * _PAGE if len(pages) > 1 else None, "bytes")

    def _server(self, now_ns: int) -> None:
        shares, memory, threads = [], 0, 0
        if self._samples % TREE_EVERY == 0:
            self._look_for_processes()
        for pid, process in list(self._processes.items()):
            words = process.stat.read().rpartition(b")")[2].split(None, 22)
            if len(words) < 22 or words[0] in b"ZX":
                del self._processes[pid]
                continue
            cpu_s, rss = (int(words[11]) + int(words[12])) * _TICK_S, int(words[21]) * _PAGE
            memory, threads = memory + rss, threads + int(words[17])
            if process.read_ns and now_ns > process.read_ns:
                share = 100.0 * (cpu_s - process.cpu_s) / (now_ns - process.read_ns) * 1e9
                shares.append(share)
                self._add(now_ns, "server.process.cpu", share, "%", process.source)
            process.cpu_s, process.read_ns = cpu_s, now_ns
            self._add(now_ns, "server.process.rss", rss, "bytes", process.source)
        if memory:
            self._add(now_ns, "server.cpu", sum(shares) if shares else None, "%")
            self._add(now_ns, "server.rss", memory, "bytes")
            self._add(now_ns, "server.threads", threads, "threads")

    def _look_for_processes(self) -> None:
        found = self._tree.of(self._server_pids())
        for pid in self._processes.keys() - set(found):
            del self._processes[pid]
        for pid in found:
            if pid not in self._processes:
                try:
                    self._processes[pid] = _Process(pid, psutil.Process(pid).name())
                except psutil.Error:
                    continue

    def _add(self, now_ns: int, name: str, value: Any, unit: str, source: str = SOURCE) -> None:
        status = "ok" if value is not None else "not_supported"
        self._rows.append((now_ns, name, None if value is None else float(value), unit, source, status))
