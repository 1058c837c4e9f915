"""Rows of a Kineto trace, and what is left out of them."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.profiling.traces import call, kernel, step, trace
from workbench.errors import RunCorruptError
from workbench.profiling.kineto import KERNELS, collect, kernels_table, read_trace


def test_nanoseconds_stay_whole(tmp_path):
    path = tmp_path / "trace.json"
    base = 1_700_000_000_000_000_123
    times = '"ts": 4611686018427387.901, "dur": 0.701'
    fields = f'"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, {times}'
    event = "{" + fields + ', "args": {"device": 0, "stream": 7, "correlation": 3}}'
    path.write_text(f'{{"schemaVersion": 1, "baseTimeNanoseconds": {base}, "traceEvents": [{event}]}}')
    (row,) = read_trace(path, shift_ns=-base).rows
    assert (row.ts_ns, row.dur_ns) == (4_611_686_018_427_387_901, 701)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_bare_arrays_and_gzip(tmp_path, name):
    path = tmp_path / name
    data = json.dumps([kernel(10, 5, 1), call(1, 2, 1)]).encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert [row.name for row in read_trace(path).rows] == ["cudaLaunchKernel", "gemm"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2", b'{"a": 1}', b'{"traceEvents": 3}', b"\xff\xfe", b"3"]
)
def test_what_is_no_trace_is_one_line(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(RunCorruptError) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    (tmp_path / "trace.json.gz").write_bytes(content)
    with pytest.raises(RunCorruptError):
        read_trace(tmp_path / "trace.json.gz")


def test_foreign_and_broken_events_do_no_harm():
    found = trace(
        3,
        None,
        {"ph": "X"},
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "cat": "Trace", "pid": "Spans", "ts": 1, "dur": 9},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "x", "dur": 1},
        {"ph": "X", "cat": "kernel", "ts": 5, "dur": 1, "args": 7},
        *[kernel(0, 0, i) for i in range(1000)],
        kernel(5, 0),
        kernel(3, 2, "x"),
    )
    assert [(row.ts_ns, row.dur_ns, row.correlation) for row in found.rows] == [
        (3000, 2000, None),
        (5000, 1000, None),
    ]
    assert found.left_out == {"no time": 1, "zero time": 1001}


@pytest.mark.parametrize("ts", ["1e400", "1e99999999", "-1e30", "9300000000000000"])
def test_stamps_that_no_clock_has_are_no_time(tmp_path, ts):
    path = tmp_path / "trace.json"
    odd = '{"ph": "X", "cat": ["a"], "ts": 1, "dur": 1}'
    rows = [f'{{"ph": "X", "cat": "cpu_op", "ts": {stamp}, "dur": 1}}' for stamp in (ts, "1")]
    path.write_text('{{"baseTimeNanoseconds": "x", "traceEvents": [{}]}}'.format(",".join([odd, *rows])))
    found = read_trace(path)
    assert ([row.ts_ns for row in found.rows], found.left_out) == ([1000], {"no time": 1})
    assert kernels_table(found.rows).num_rows == 1


def test_a_base_that_moves_stamps_out_of_64_bits():
    assert collect([call(9_000_000_000_000_000, 1)], 1 << 62).left_out == {"no time": 1}


def test_classes():
    found = trace(
        kernel(1, 1, name="ncclDevKernel_AllReduce"),
        kernel(2, 1, name="cross_device_reduce_1stage_allreduce"),
        kernel(3, 1, name="flash_fwd"),
        kernel(4, 1, cat="gpu_memcpy", name="Memcpy HtoD"),
        call(5, 1, name="cudaStreamSynchronize"),
        call(6, 1, name="cudaMemcpyAsync"),
        call(7, 1, name="cuLaunchKernelEx", cat="cuda_driver"),
        call(8, 1, name="cudaGraphLaunch"),
        call(9, 1, name="aten::mm", cat="cpu_op"),
        call(10, 1, name="cudaMemcpy"),
        call(11, 1, name="cudaEventQuery"),
    )
    assert [row.cls for row in found.rows] == [
        "communication",
        "communication",
        "compute",
        "memory",
        "sync",
        "launch",
        "launch",
        "launch",
        "operator",
        "sync",
        "runtime",
    ]


def test_kernels_belong_to_the_step_that_launched_them_not_to_the_one_they_ran_in():
    found = trace(
        step(4, 0, 100),
        step(5, 100, 100),
        call(10, 5, 1),
        call(110, 5, 2),
        call(50, 3, 9, name="cudaGraphLaunch"),
        kernel(20, 5, 1),
        kernel(150, 5, 9),
        kernel(156, 5, 9),
        kernel(160, 5, 2),
        kernel(170, 5, 77),
        call(300, 1, name="aten::mm", cat="cpu_op"),
        call(60, 4, name="aten::add", cat="cpu_op", **{"External id": 31}),
        kernel(180, 3, 0, **{"External id": 31}),
    )
    by_start = {row.ts_ns // 1000: row.step_id for row in found.rows}
    assert by_start == {
        0: 4,
        10: 4,
        20: 4,
        50: 4,
        60: 4,
        100: 5,
        110: 5,
        150: 4,
        156: 4,
        160: 5,
        170: None,
        180: 4,
        300: None,
    }


def test_table():
    found = trace(call(1, 2, 8), kernel(4, 3, 8, **{"graph id": 5, "graph node id": 6}))
    table = kernels_table(found.rows)
    assert table.schema == KERNELS
    assert table.to_pylist()[1] == {
        "name": "gemm",
        "cat": "kernel",
        "cls": "compute",
        "track": "GPU 0 stream 7",
        "ts_ns": 4000,
        "dur_ns": 3000,
        "correlation": 8,
        "external_id": None,
        "graph_id": 5,
        "graph_node_id": 6,
        "step_id": None,
    }
