"""CPU telemetry: a thread that samples the host, this client and the server's processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa

from workbench.collectors.sched import SchedProbe
from workbench.records import TELEMETRY

INTERVAL_S = 0.5
"""A sample takes 2 to 3 ms of CPU; more often would show in the client's own lag, and in the server's."""
TREE_EVERY = 10
"""Samples between two looks for new processes of the server: that reads the whole of /proc."""

Row = tuple[int, str, float | None, str, str, str]


class CpuSampler:
    """Context manager; afterwards :meth:`table` is ``telemetry_cpu.parquet``.

    Names: ``system.*`` (whole host), ``client.*`` (this process), ``server.*`` (sum over the server's
    process tree) and
    ``server.process.*`` (one each, ``source`` tells which). CPU shares are in % of one core, so 200 is two
    cores.
    """

    def __init__(self, server_pids: Callable[[], list[int]], interval_s: float = INTERVAL_S) -> None:
        self._server_pids = server_pids
        self._interval_s = interval_s
        self._rows: list[Row] = []
        self._known: dict[int, psutil.Process] = {}
        self._processes: list[psutil.Process] = []
        self._samples = 0
        self._client = psutil.Process(os.getpid())
        self._switches: tuple[int, int] | None = None
        self._sched = SchedProbe()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-sampler", daemon=True)

    def __enter__(self) -> CpuSampler:
        # The first reading of a share has nothing to compare with: take it now and drop it.
        psutil.cpu_times_percent()
        self._client.cpu_percent()
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
        with self._client.oneshot():
            self._add(now_ns, "client.cpu", self._client.cpu_percent(), "%")
            self._add(now_ns, "client.rss", self._client.memory_info().rss, "bytes")
        self._server(now_ns)
        for one in self._sched.sample(now_ns, list(self._known)):
            self._rows.append((now_ns, *one))

    def _system(self, now_ns: int) -> None:
        share = psutil.cpu_times_percent()
        self._add(now_ns, "system.cpu_busy", 100.0 - share.idle - getattr(share, "iowait", 0.0), "%")
        self._add(now_ns, "system.cpu_steal", getattr(share, "steal", None), "%")
        self._add(now_ns, "system.load1", os.getloadavg()[0], "processes")
        self._add(now_ns, "system.memory_available", psutil.virtual_memory().available, "bytes")
        frequency = psutil.cpu_freq()
        self._add(now_ns, "system.cpu_freq", frequency.current if frequency else None, "MHz")
        total = psutil.cpu_stats().ctx_switches
        if self._switches is not None:
            before_ns, before = self._switches
            self._add(now_ns, "system.ctx_switches", (total - before) / (now_ns - before_ns) * 1e9, "1/s")
        self._switches = (now_ns, total)

    def _server(self, now_ns: int) -> None:
        shares, memory, threads = [], 0.0, 0.0
        if self._samples % TREE_EVERY == 0:
            self._processes = self._tree()
        self._samples += 1
        for process in list(self._processes):
            try:
                with process.oneshot():
                    source = f"pid {process.pid} {process.name()}"
                    rss, count = process.memory_info().rss, process.num_threads()
                    share = process.cpu_percent()
            except psutil.Error:
                self._known.pop(process.pid, None)
                self._processes.remove(process)
                continue
            memory, threads = memory + rss, threads + count
            if process.pid in self._known:
                shares.append(share)
                self._add(now_ns, "server.process.cpu", share, "%", source)
            self._known[process.pid] = process
            self._add(now_ns, "server.process.rss", rss, "bytes", source)
        if memory:
            self._add(now_ns, "server.cpu", sum(shares) if shares else None, "%")
            self._add(now_ns, "server.rss", memory, "bytes")
            self._add(now_ns, "server.threads", threads, "threads")

    def _tree(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for pid in self._server_pids():
            try:
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    # The known object remembers its last CPU reading.
                    found[process.pid] = self._known.get(process.pid, process)
            except psutil.Error:
                continue
        return list(found.values())

    def _add(self, now_ns: int, name: str, value: Any, unit: str, source: str = "psutil") -> None:
        status = "ok" if value is not None else "not_supported"
        self._rows.append((now_ns, name, None if value is None else float(value), unit, source, status))
