"""CPU telemetry: names, units, and honesty about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

from workbench.collectors.cpu import TREE_EVERY, CpuSampler
from workbench.records import TELEMETRY


def test_host_client_and_server_are_sampled():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with CpuSampler(lambda: [child.pid], interval_s=0.02) as sampler:
            while len([r for r in sampler._rows if r[1] == "server.cpu" and r[2] is not None]) < 2:
                os.sched_yield()
    finally:
        child.communicate(b"\n")
    table = sampler.table()
    assert table.schema == TELEMETRY
    frame = table.to_pandas()
    names = set(frame["name"])
    assert names >= {
        "system.cpu_busy", "system.cpu_steal", "system.load1", "system.ctx_switches", "client.cpu",
        "client.rss", "server.cpu", "server.rss", "server.process.cpu", "server.threads",
    }  # fmt: skip
    assert frame["t_ns"].is_monotonic_increasing
    good = frame[frame["status"] == "ok"]
    assert (good["value"] >= 0).all()
    assert frame[frame["status"] != "ok"]["value"].isna().all()
    assert good[good["name"] == "server.process.rss"]["source"].str.startswith(f"pid {child.pid} ").all()
    assert (good[good["name"] == "client.rss"]["value"] > 1e6).all()


def test_a_server_that_is_gone_or_foreign_leaves_the_rest():
    with CpuSampler(lambda: [2**22 + 1], interval_s=0.01) as sampler:
        while len(sampler._rows) < 20:
            os.sched_yield()
    names = {row[1] for row in sampler._rows}
    assert not any(name.startswith("server.") for name in names)
    assert "client.cpu" in names


def test_no_sample_is_an_empty_table():
    sampler = CpuSampler(list)
    assert sampler.table().num_rows == 0
    assert sampler.mean("client.cpu") is None


def test_the_process_tree_is_looked_for_now_and_then_only():
    calls = []

    def pids():
        calls.append(len(calls))
        return [os.getpid()]

    sampler = CpuSampler(pids)
    for _ in range(2 * TREE_EVERY + 1):
        sampler._sample()
    assert len(calls) == 3
    rows = [row for row in sampler.table().to_pylist() if row["name"] == "server.rss"]
    assert len(rows) == 2 * TREE_EVERY + 1


def test_a_process_that_ends_is_dropped_at_once():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler = CpuSampler(lambda: [child.pid])
    sampler._sample()
    child.communicate(b"\n")
    sampler._sample()
    rows = [row for row in sampler.table().to_pylist() if row["name"] == "server.rss"]
    assert len(rows) == 1
