"""Shares from the counters of a made-up /proc."""

from __future__ import annotations

from pathlib import Path

from workbench.collectors.memory import read_bandwidth_gb_s
from workbench.collectors.sched import Sample, SchedProbe

SECOND = 1_000_000_000


class FakeHost:
    """Writes the files that the probe reads."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        (self.proc / "pressure").mkdir(parents=True)
        (self.proc / "self").mkdir()
        (self.proc / "self" / "cgroup").write_text("0::/job\n")
        (self.cgroup / "job").mkdir(parents=True)

    def thread(self, pid, tid, comm, ticks=0, schedstat=None):
        task = self.proc / str(pid) / "task" / str(tid)
        task.mkdir(parents=True, exist_ok=True)
        fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 30]
        (task / "comm").write_text(f"{comm}\n")
        (task / "stat").write_text(f"{tid} ({comm}) {' '.join(fields)}\n")
        if schedstat is not None:
            (task / "schedstat").write_text(schedstat)

    def status(self, pid, switches):
        (self.proc / str(pid) / "status").write_text(
            f"Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t{switches}\n"
        )

    def pressure(self, total):
        (self.proc / "pressure" / "cpu").write_text(
            f"some avg10=1.00 avg60=0 avg300=0 total={total}\nfull avg10=0 total=9\n"
        )

    def throttled(self, usec):
        (self.cgroup / "job" / "cpu.stat").write_text(
            f"usage_usec 5\nnr_throttled 3\nthrottled_usec {usec}\n"
        )

    def probe(self, **how):
        return SchedProbe(self.proc, self.cgroup, **how)


def by_name(samples):
    return {(s.name, s.source): s for s in samples}


def test_shares_between_two_samples(tmp_path):
    host = FakeHost(tmp_path)
    host.pressure(0)
    host.throttled(0)
    host.thread(7, 7, "python (x) y", schedstat="1000 1000 3")
    host.thread(7, 8, "idle", schedstat="500 500 3")
    host.status(7, 100)
    probe = host.probe()
    assert probe.sample(0, [7]) == []
    host.pressure(250_000)
    host.throttled(100_000)
    host.thread(7, 7, "python (x) y", schedstat=f"{1000 + SECOND // 2} {1000 + SECOND // 4} 9")
    host.status(7, 140)
    found = by_name(probe.sample(SECOND, [7]))
    source = "pid 7 tid 7 python (x) y"
    assert found == {
        ("system.cpu_pressure", "proc"): Sample("system.cpu_pressure", 25.0, "%", "proc", "ok"),
        ("system.cgroup_throttled", "proc"): Sample("system.cgroup_throttled", 10.0, "%", "proc", "ok"),
        ("server.process.ctx_switches_involuntary", "pid 7"): Sample(
            "server.process.ctx_switches_involuntary", 40.0, "1/s", "pid 7", "ok"
        ),
        ("server.thread.cpu", source): Sample("server.thread.cpu", 50.0, "%", source, "ok"),
        ("server.thread.run_wait", source): Sample("server.thread.run_wait", 25.0, "%", source, "ok"),
    }


def test_a_kernel_that_counts_no_waits_says_so(tmp_path):
    host = FakeHost(tmp_path)
    host.thread(7, 7, "python", ticks=10, schedstat="0 0 1")
    probe = host.probe()
    probe.sample(0, [7])
    host.thread(7, 7, "python", ticks=60, schedstat="0 0 1")
    found = {s.name: (s.value, s.status) for s in probe.sample(SECOND, [7])}
    assert found["server.thread.cpu"] == (50.0, "ok")
    assert found["server.thread.run_wait"] == (None, "not_supported")
    assert found["system.cpu_pressure"] == (None, "not_supported")
    assert found["system.cgroup_throttled"] == (None, "not_supported")


def test_cgroup_version_1(tmp_path):
    host = FakeHost(tmp_path)
    (host.proc / "self" / "cgroup").write_text("4:memory:/m\n1:cpu,cpuacct:/job\n")
    folder = host.cgroup / "cpu" / "job"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("nr_periods 4\nnr_throttled 1\nthrottled_time 0\n")
    probe = host.probe()
    probe.sample(0, [])
    (folder / "cpu.stat").write_text(f"nr_periods 4\nnr_throttled 1\nthrottled_time {SECOND // 5}\n")
    found = {s.name: s.value for s in probe.sample(SECOND, [])}
    assert found["system.cgroup_throttled"] == 20.0


def test_an_idle_thread_is_read_again_with_the_next_look_at_all(tmp_path):
    """Its share is then over the whole time; threads that are new are found at the same time."""
    host = FakeHost(tmp_path)
    host.thread(7, 7, "busy", schedstat="1000 1000 1")
    host.thread(7, 8, "idle", schedstat="1000 1000 1")
    probe = host.probe(scan_every=4)
    seen = []
    for second in range(5):
        host.thread(7, 7, "busy", schedstat=f"{1000 + second * SECOND // 2} 1000 1")
        if second == 2:
            host.thread(7, 8, "idle", schedstat=f"{1000 + 3 * SECOND // 2} 1000 1")
            host.thread(7, 9, "new", schedstat="1000 1000 1")
        found = {
            s.source: s.value for s in probe.sample(second * SECOND, [7]) if s.name == "server.thread.cpu"
        }
        seen.append({source.rpartition(" ")[2]: value for source, value in found.items()})
    assert seen == [{}, {"busy": 50.0}, {"busy": 50.0}, {"busy": 50.0}, {"busy": 50.0, "idle": 50.0}]
    host.thread(7, 9, "new", schedstat=f"{1000 + SECOND} 1000 1")
    found = {s.source for s in probe.sample(5 * SECOND, [7]) if s.name == "server.thread.cpu"}
    assert "pid 7 tid 9 new" in found


def test_a_process_that_ended(tmp_path):
    host = FakeHost(tmp_path)
    probe = host.probe()
    probe.sample(0, [9])
    assert {s.name for s in probe.sample(SECOND, [9])} == {"system.cpu_pressure", "system.cgroup_throttled"}


def test_memory_bandwidth_is_of_this_world():
    assert 0.2 < read_bandwidth_gb_s(1) < 10_000
