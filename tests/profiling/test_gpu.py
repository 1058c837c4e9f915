"""Busy, idle and why, on traces made by hand: every figure is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiling.traces import call, kernel, step, trace
from workbench.profiling.gpu import analyse_gpu, measure_coverage
from workbench.profiling.intervals import gaps, length, minus, union

US = 1000


def test_busy_is_a_union_not_a_sum():
    report = analyse_gpu(trace(call(0, 1, 1), call(1, 1, 2), kernel(10, 10, 1), kernel(15, 10, 2, stream=8)))
    assert (report.busy_ns, report.window_ns, report.idle_ns, report.idle_share) == (15 * US, 15 * US, 0, 0.0)


def test_gaps_are_typed_by_the_launch_of_what_ends_them():
    report = analyse_gpu(
        trace(
            call(0, 2, 1),
            kernel(10, 10, 1),
            call(25, 2, 2),
            kernel(30, 10, 2),  # launched at 25, the GPU was dry at 20
            call(33, 2, 3),
            kernel(45, 5, 3),  # launched in time, started 5 late
            call(40, 20, name="cudaStreamSynchronize"),  # waits for the GPU to run dry at 50, until 60
            call(62, 2, 4),
            kernel(70, 10, 4),
            kernel(90, 10, 99),  # nobody launched it
        )
    )
    assert report.gaps_ns == {
        "host_wait": 10 * US,
        "kernel_wait": 5 * US,
        "sync_drain": 20 * US,
        "unattributed": 10 * US,
    }
    assert report.gap_counts == dict.fromkeys(report.gaps_ns, 1)
    assert report.idle_ns == 45 * US == sum(report.gaps_ns.values())


def test_kernels_of_a_graph_share_a_launch_and_only_the_first_can_have_waited_for_the_host():
    events = [call(0, 3, 1, name="cudaGraphLaunch")]
    events += [kernel(10 + 12 * i, 10, 1, name=f"node{i}") for i in range(20)]
    events += [call(260, 3, 2, name="cudaGraphLaunch"), kernel(270, 10, 2), kernel(282, 10, 2)]
    report = analyse_gpu(trace(*events))
    assert report.gap_counts == {"host_wait": 1, "kernel_wait": 20, "sync_drain": 0, "unattributed": 0}
    assert report.gaps_ns["kernel_wait"] == 20 * 2 * US
    assert report.short_kernels == 0
    assert report.coverage.graph_launches == 2
    assert report.refusal is None


def test_a_graph_whose_kernels_were_lost_gives_no_idle_share():
    """Else a saturated GPU reads as 90 % idle."""
    events = []
    for i in range(10):
        events.append(call(100 * i, 3, i + 1, name="cudaGraphLaunch"))
        if i in (0, 9):
            events.append(kernel(100 * i + 10, 90, i + 1))
    report = analyse_gpu(trace(*events))
    assert report.idle_share is None
    assert report.refusal == "8 of 10 graph launches have no kernels: the profiler lost them"


def graphs(sizes, graph_id=5):
    """One launch after the other, each with so many kernels of 4 µs."""
    events = []
    for i, size in enumerate(sizes):
        events.append(call(100 * i, 3, i + 1, name="cudaGraphLaunch"))
        ids = {"graph id": graph_id} if graph_id else {}
        events += [kernel(100 * i + 10 + 5 * k, 4, i + 1, **ids) for k in range(size)]
    return events


@pytest.mark.parametrize(
    ("sizes", "graph_id", "cut"),
    [
        ([3] * 12, 5, 0),
        ([1, *[3] * 10, 2], 5, 0),  # at the window's ends a launch may be cut
        ([3] * 5 + [2] + [3] * 6, 5, 1),
        ([3] * 5 + [2] + [3] * 6, None, 0),  # two graphs of different sizes, for all the trace tells
    ],
)
def test_a_graph_that_lost_some_of_its_kernels(sizes, graph_id, cut):
    report = analyse_gpu(trace(*graphs(sizes, graph_id)))
    assert report.coverage.graph_launches_cut == cut
    if cut:
        assert report.refusal == (
            "1 of 12 graph launches have fewer kernels than their graph: the profiler lost some"
        )
    assert (report.idle_share is None) == bool(cut)


def test_graphs_of_different_sizes_are_no_loss():
    events = graphs([3] * 4)
    for event in graphs([9] * 4, graph_id=6):
        args = {**event["args"], "correlation": event["args"]["correlation"] + 50}
        events.append({**event, "ts": event["ts"] + 1000, "args": args})
    assert analyse_gpu(trace(*events)).refusal is None


def test_rows_that_overlap_on_their_stream_are_counted_and_their_time_is_not_doubled():
    report = analyse_gpu(
        trace(
            call(0, 1, 1),
            call(1, 1, 2),
            call(2, 1, 3),
            kernel(10, 10, 1),
            kernel(15, 10, 2),
            kernel(15, 4, 3, stream=8),
        )
    )
    assert report.coverage.gpu_rows_overlapping == 1
    assert report.busy_ns == 15 * US


def test_exposed_is_what_nothing_else_covers():
    report = analyse_gpu(
        trace(
            call(0, 1, 1),
            call(1, 1, 2),
            call(2, 1, 3, name="cudaMemcpyAsync"),
            kernel(10, 20, 1),
            kernel(20, 30, 2, name="ncclAllReduce", stream=9),
            kernel(45, 10, 3, stream=8, cat="gpu_memcpy"),
        )
    )
    assert report.compute_ns == 20 * US
    assert report.exposed_communication_ns == 20 * US
    assert report.exposed_copies_ns == 5 * US
    assert report.window_ns == 45 * US


def test_launch_statistics():
    report = analyse_gpu(
        trace(
            call(0, 80, 1),
            kernel(100, 10, 1),
            call(90, 4, 2),
            kernel(111, 3, 2),
            call(96, 2, 3),
            kernel(120, 30, 3),
        )
    )
    assert report.slow_calls == 1
    assert report.short_kernels == 2
    assert report.launch_delay_p50_ns == 24 * US
    assert report.launch_delay_p99_ns == 24 * US
    assert report.top[0] == ("gemm", 3, 43 * US)


def test_zero_rows_do_not_move_the_window():
    report = analyse_gpu(
        trace(*[kernel(0, 0, i) for i in range(1, 1001)], call(5, 1, 2000), kernel(100, 10, 2000))
    )
    assert (report.window_ns, report.coverage.left_out) == (10 * US, {"zero time": 1000})


@pytest.mark.parametrize(
    ("expected", "distortion", "refusal"),
    [
        (2, None, None),
        (50, None, "trace coverage 4%"),
        (2, 1.2, None),
        (2, 1.8, "the profiler made steps 1.8 times as long"),
    ],
)
def test_refusals(expected, distortion, refusal):
    found = trace(
        step(0, 0, 30), step(1, 30, 30), call(0, 1, 1), kernel(5, 10, 1), call(31, 1, 2), kernel(35, 10, 2)
    )
    report = analyse_gpu(found, measure_coverage(found, expected, distortion))
    assert report.refusal == refusal
    assert (report.idle_share is None) == (refusal is not None)


def test_launches_whose_work_is_missing_lower_the_coverage():
    found = trace(
        *[call(10 * i, 1, i + 1) for i in range(10)], *[kernel(10 * i + 3, 5, i + 1) for i in range(9)]
    )
    coverage = measure_coverage(found)
    assert (coverage.launches, coverage.launches_without_work, coverage.share) == (10, 1, 0.9)
    assert coverage.refusal == "trace coverage 90%"


def test_a_trace_without_a_gpu_has_no_verdict():
    report = analyse_gpu(trace(step(0, 0, 10), call(1, 2, name="aten::mm", cat="cpu_op")))
    assert report.refusal == "no GPU work in the trace"
    assert report.as_json()["coverage"]["share"] == 1.0


SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


@given(SPANS, SPANS)
def test_intervals_against_sets_of_moments(one, other):
    a, b = union(one), union(other)
    moments = {t for start, end in one for t in range(start, end)}
    others = {t for start, end in other for t in range(start, end)}
    assert {t for start, end in a for t in range(start, end)} == moments
    assert length(a) == len(moments)
    assert {t for start, end in minus(a, b) for t in range(start, end)} == moments - others
    assert {t for start, end in gaps(a, 5, 70) for t in range(start, end)} == set(range(5, 70)) - moments


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.integers(1, 30), st.sampled_from(["gemm", "ncclX", "copy"])),
        min_size=1,
        max_size=30,
    )
)
def test_parts_sum_to_the_window(spans):
    events = [
        kernel(ts, dur, i + 1, name=name, stream=i % 3, cat="gpu_memcpy" if name == "copy" else "kernel")
        for i, (ts, dur, name) in enumerate(spans)
    ]
    report = analyse_gpu(trace(*events))
    parts = report.compute_ns + report.exposed_communication_ns + report.exposed_copies_ns + report.idle_ns
    assert parts == report.window_ns
    assert sum(report.gaps_ns.values()) == report.idle_ns
