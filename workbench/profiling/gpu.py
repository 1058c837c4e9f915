"""What a GPU did in a window: busy union, idle gaps by cause, exposed communication and copies, launches.

A gap is typed by the launch of what ends it:

- ``host_wait``: the CPU launched it after the GPU had run dry;
- ``sync_drain``: so too, and the CPU had been waiting in a synchronisation for the GPU to run dry;
- ``kernel_wait``: it was launched in time and waited for the device (dependency, launch latency);
- ``unattributed``: its launch is not in the trace.

All kernels of a CUDA graph share their launch's correlation: the launch decides for the first of them, the
rest are ``kernel_wait``. Where kernels are missing, no idle share is given: it would be wrong by any amount.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.profiling.intervals import gaps, length, minus, union
from workbench.profiling.kineto import RUNTIME_CATS, STEP_NAME, KinetoTrace, Row

MIN_COVERAGE = 0.95
MAX_EMPTY_GRAPHS = 0.01
MAX_DISTORTION = 1.3
SLOW_CALL_NS = 50_000
GAP_KINDS = ("host_wait", "sync_drain", "kernel_wait", "unattributed")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the window is in the trace."""

    steps_expected: int | None
    steps_seen: int
    launches: int
    launches_without_work: int
    graph_launches: int
    graph_launches_without_kernels: int
    graph_launches_cut: int
    """With fewer kernels than the same graph has otherwise; the first and the last of the window may have."""
    gpu_rows: int
    gpu_rows_without_launch: int
    gpu_rows_overlapping: int
    """Beginning before the one before them on the same stream has ended: counted once, by the union."""
    left_out: dict[str, int]
    distortion: float | None
    """Step time under the profiler over step time without it."""

    @property
    def share(self) -> float:
        """The least of: steps seen, launches whose work is there."""
        steps = self.steps_seen / self.steps_expected if self.steps_expected else 1.0
        launches = 1.0 - self.launches_without_work / self.launches if self.launches else 1.0
        return min(1.0, steps, launches)

    @property
    def refusal(self) -> str | None:
        """Why no idle share may be given; None: it may."""
        if not self.gpu_rows:
            return "no GPU work in the trace"
        if self.share < MIN_COVERAGE:
            return f"trace coverage {self.share:.0%}"
        lost, cut, graphs = self.graph_launches_without_kernels, self.graph_launches_cut, self.graph_launches
        if lost > MAX_EMPTY_GRAPHS * graphs:
            return f"{lost} of {graphs} graph launches have no kernels: the profiler lost them"
        if cut > MAX_EMPTY_GRAPHS * graphs:
            few = f"{cut} of {graphs} graph launches have fewer kernels than their graph"
            return f"{few}: the profiler lost some"
        if self.distortion is not None and self.distortion > MAX_DISTORTION:
            return f"the profiler made steps {self.distortion:.1f} times as long"
        return None


@dataclass(frozen=True, slots=True)
class GpuReport:
    """ns, over the window from the first to the last GPU row. ``compute + exposed_communication +
    exposed_copies + idle == window``. ``idle_share`` is None where ``refusal`` says why.
    """

    window_ns: int
    busy_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copies_ns: int
    idle_ns: int
    idle_share: float | None
    refusal: str | None
    gaps_ns: dict[str, int]
    gap_counts: dict[str, int]
    launch_delay_p50_ns: int | None
    launch_delay_p99_ns: int | None
    slow_calls: int
    """Runtime calls of more than 50 µs."""
    short_kernels: int
    """Kernels shorter than the call that launched them."""
    top: list[tuple[str, int, int]]
    """(name, calls, ns) of the kernels that took longest."""
    coverage: Coverage

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "coverage": {**asdict(self.coverage), "share": self.coverage.share}}


def measure_coverage(
    trace: KinetoTrace, steps_expected: int | None = None, distortion: float | None = None
) -> Coverage:
    """Count what should be there and is not."""
    started: Counter[int | None] = Counter(
        row.correlation for row in trace.rows if row.on_gpu and row.correlation
    )
    launches = [row for row in trace.rows if row.cls == "launch"]
    graphs = [row for row in launches if "GraphLaunch" in row.name]
    plain = [row for row in launches if "GraphLaunch" not in row.name]
    known = {row.correlation for row in trace.rows if row.cat in RUNTIME_CATS}
    gpu = [row for row in trace.rows if row.on_gpu]
    steps = {
        match[1] for row in trace.rows if row.cls == "annotation" and (match := STEP_NAME.search(row.name))
    }
    return Coverage(
        steps_expected=steps_expected,
        steps_seen=len(steps),
        launches=len(plain),
        launches_without_work=sum(row.correlation not in started for row in plain),
        graph_launches=len(graphs),
        graph_launches_without_kernels=sum(row.correlation not in started for row in graphs),
        graph_launches_cut=_cut_graphs(graphs, gpu, started),
        gpu_rows=len(gpu),
        gpu_rows_without_launch=sum(row.correlation not in known for row in gpu),
        gpu_rows_overlapping=_overlapping(gpu),
        left_out=dict(trace.left_out),
        distortion=distortion,
    )


def _cut_graphs(launches: Sequence[Row], gpu: Sequence[Row], started: Counter[int | None]) -> int:
    """A graph replays the same kernels each time: launches that have fewer have lost some. Graphs without an
    id can't be told apart.
    """
    graph_of = {row.correlation: row.graph_id for row in gpu if row.graph_id is not None}
    sizes: dict[int, list[int]] = defaultdict(list)
    for launch in launches[1:-1]:
        graph = graph_of.get(launch.correlation)
        if graph is not None:
            sizes[graph].append(started[launch.correlation])
    return sum(size < max(found) for found in sizes.values() for size in found)


def _overlapping(gpu: Sequence[Row]) -> int:
    ends: dict[str, int] = {}
    found = 0
    for row in gpu:
        end = ends.get(row.track, row.ts_ns)
        found += row.ts_ns < end
        ends[row.track] = max(end, row.end_ns)
    return found


def analyse_gpu(trace: KinetoTrace, coverage: Coverage | None = None) -> GpuReport:
    """Analyse one window; without GPU rows everything is 0 and the report refuses."""
    coverage = coverage or measure_coverage(trace)
    rows = [row for row in trace.rows if row.on_gpu]
    launches = _first_calls(trace.rows)
    busy = union((row.ts_ns, row.end_ns) for row in rows)
    begin, end = (busy[0][0], busy[-1][1]) if busy else (0, 0)
    parts = {
        cls: union((r.ts_ns, r.end_ns) for r in rows if r.cls == cls)
        for cls in ("compute", "communication", "memory")
    }
    communication = minus(parts["communication"], parts["compute"])
    covered = union([*parts["compute"], *parts["communication"]])
    copies = minus(parts["memory"], covered)
    by_kind = _typed_gaps(rows, gaps(busy, begin, end), launches, trace.rows)
    delays = sorted(
        row.ts_ns - launches[row.correlation].ts_ns for row in rows if row.correlation in launches
    )
    idle = end - begin - length(busy)
    refusal = coverage.refusal
    return GpuReport(
        window_ns=end - begin,
        busy_ns=length(busy),
        compute_ns=length(parts["compute"]),
        exposed_communication_ns=length(communication),
        exposed_copies_ns=length(copies),
        idle_ns=idle,
        idle_share=None if refusal or end == begin else idle / (end - begin),
        refusal=refusal,
        gaps_ns={kind: sum(by_kind[kind]) for kind in GAP_KINDS},
        gap_counts={kind: len(by_kind[kind]) for kind in GAP_KINDS},
        launch_delay_p50_ns=delays[len(delays) // 2] if delays else None,
        launch_delay_p99_ns=delays[int(0.99 * (len(delays) - 1))] if delays else None,
        slow_calls=sum(row.cat in RUNTIME_CATS and row.dur_ns > SLOW_CALL_NS for row in trace.rows),
        short_kernels=_short_kernels(rows, launches),
        top=_top(rows),
        coverage=coverage,
    )


def _first_calls(rows: Sequence[Row]) -> dict[int | None, Row]:
    """The runtime call of each correlation."""
    return {row.correlation: row for row in reversed(rows) if row.cat in RUNTIME_CATS and row.correlation}


def _typed_gaps(
    rows: Sequence[Row],
    idle: Sequence[tuple[int, int]],
    launches: dict[int | None, Row],
    everything: Sequence[Row],
) -> dict[str, list[int]]:
    """Lengths of the gaps by kind."""
    starts: dict[int, Row] = {}
    first_of: dict[int | None, int] = {}
    for row in rows:
        starts.setdefault(row.ts_ns, row)
        first_of.setdefault(row.correlation, row.ts_ns)
    syncs = sorted((row.ts_ns, row.end_ns) for row in everything if row.cls == "sync" and not row.on_gpu)
    found: dict[str, list[int]] = defaultdict(list)
    for begin, end in idle:
        kernel = starts[end]
        launch = launches.get(kernel.correlation)
        if launch is None:
            kind = "unattributed"
        elif first_of[kernel.correlation] != kernel.ts_ns or launch.ts_ns <= begin:
            kind = "kernel_wait"
        else:
            kind = "sync_drain" if _was_waiting(syncs, begin, launch.ts_ns) else "host_wait"
        found[kind].append(end - begin)
    return found


def _was_waiting(syncs: Sequence[tuple[int, int]], dry_ns: int, launch_ns: int) -> bool:
    """Was the CPU in a synchronisation when the GPU ran dry, and came back from it before the launch?"""
    place = bisect_right(syncs, (dry_ns, 1 << 62))
    return any(dry_ns <= end <= launch_ns for _, end in syncs[max(0, place - 8) : place])


def _short_kernels(rows: Sequence[Row], launches: dict[int | None, Row]) -> int:
    """A graph's launch is shared by many kernels: it says nothing about one of them."""
    found = 0
    for row in rows:
        launch = launches.get(row.correlation)
        if launch is not None and "GraphLaunch" not in launch.name and row.dur_ns < launch.dur_ns:
            found += 1
    return found


def _top(rows: Sequence[Row], count: int = 10) -> list[tuple[str, int, int]]:
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for row in rows:
        calls[row.name] += 1
        spent[row.name] += row.dur_ns
    return [(name, calls[name], ns) for name, ns in spent.most_common(count)]
