"""The timeline of a run as Chrome trace events."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInputError
from tests.diagnosis.cases import CASES, HEALTHY
from tests.diagnosis.test_command import store
from tests.trace.schema import check_trace
from workbench.cli import main
from workbench.records import CHUNKS
from workbench.runstore import RunStore
from workbench.timeline.chrome_trace import Lanes
from workbench.timeline.perfetto import CLIENT, ENGINE, KERNELS, STEPS, export
from workbench.timeline.split import split_run

PREEMPTING = next(case.world for case in CASES if case.name == "KV at 40 % of the peak demand")


def load(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_float=Fraction)


def run_of(tmp_path, world):
    store(tmp_path, world, "run")
    return RunStore(tmp_path).open("run")


@pytest.mark.parametrize("world", [HEALTHY, PREEMPTING, replace(HEALTHY, engine={"async_scheduling": True})])
def test_every_request_step_and_state_is_there(tmp_path, world):
    run = run_of(tmp_path, world)
    num_events = export(run, tmp_path / "trace.json")
    trace = load(tmp_path / "trace.json")
    assert len(trace["traceEvents"]) == num_events
    tracks = check_trace(trace)
    base = trace["baseTimeNanoseconds"]
    splits = split_run(run)
    shown = {
        s["args"]["request_id"]: s
        for (pid, _), slices in tracks.items()
        if pid == CLIENT
        for s in slices
        if "args" in s
    }
    for one in splits:
        mine = shown[one.request_id]
        assert mine["ts"] * 1000 + base == one.sent_ns - one.client_lag_ns
        assert mine["dur"] * 1000 == one.e2el_ns + one.client_lag_ns
    steps = run.arrow("steps").to_pylist()
    drawn = [
        s
        for (pid, _), slices in tracks.items()
        if pid == STEPS
        for s in slices
        if s["name"].startswith("step ")
    ]
    assert sorted((s["ts"] * 1000 + base, s["dur"] * 1000) for s in drawn) == sorted(
        (s["t_start"], s["t_end"] - s["t_start"]) for s in steps
    )
    states = [s["name"] for (pid, _), slices in tracks.items() if pid == ENGINE for s in slices]
    assert states.count("prefill") == sum(s.state == "prefill" for one in splits for s in one.life.segments)
    assert ("recompute" in states) == (world is PREEMPTING)


def test_overlapping_requests_are_on_lanes_of_their_own(tmp_path):
    run = run_of(tmp_path, HEALTHY)
    export(run, tmp_path / "trace.json.gz")
    tracks = check_trace(load(tmp_path / "trace.json.gz"))
    lanes = {tid for pid, tid in tracks if pid == CLIENT}
    moments = [(s.sent_ns - s.client_lag_ns, 1) for s in split_run(run)] + [
        (s.end_ns, -1) for s in split_run(run)
    ]
    depth = most = 0
    for _, change in sorted(moments):
        depth += change
        most = max(most, depth)
    assert len(lanes) == most > 5


def test_chunks_counters_and_kernels(tmp_path):
    run = run_of(tmp_path, HEALTHY)
    first = split_run(run)[0]
    chunks = [
        {
            "request_id": first.request_id,
            "recv_ns": first.first_ns + 7,
            "kind": "content",
            "n_tokens": 2,
            "n_tokens_source": "token_ids",
        }
    ]
    pq.write_table(pa.Table.from_pylist(chunks, schema=CHUNKS), run.path / "chunks.parquet")
    at = first.first_ns
    kernels = [
        {
            "name": "mm",
            "cls": "compute",
            "track": "stream 7",
            "ts_ns": at,
            "dur_ns": 100,
            "correlation": 1,
            "step_id": 0,
        },
        {
            "name": "copy",
            "cls": "memory",
            "track": "stream 7",
            "ts_ns": at + 50,
            "dur_ns": 100,
            "correlation": 2,
            "step_id": 0,
        },
    ]
    pq.write_table(pa.Table.from_pylist(kernels), run.path / "kernels.parquet")
    export(run, tmp_path / "trace.json")
    trace = load(tmp_path / "trace.json")
    tracks = check_trace(trace)
    found = {
        (pid, tid): [s["name"] for s in slices] for (pid, tid), slices in tracks.items() if pid == KERNELS
    }
    assert list(found.values()) == [["mm"], ["copy"]]
    (chunk,) = (e for e in trace["traceEvents"] if e["ph"] == "i" and e["name"] == "content")
    assert chunk["ts"] * 1000 + trace["baseTimeNanoseconds"] == at + 7
    counters = {e["name"] for e in trace["traceEvents"] if e["ph"] == "C"}
    assert {"batch tokens", "requests", "KV blocks"} <= counters


def test_a_run_without_tables_is_an_empty_timeline(tmp_path):
    run = run_of(tmp_path, HEALTHY)
    for path in run.path.glob("*.parquet"):
        path.unlink()
    export(run, tmp_path / "trace.json")
    assert check_trace(load(tmp_path / "trace.json")) == {}


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    run = run_of(tmp_path, HEALTHY)
    with pytest.raises(InvalidInputError, match="output="):
        export(run, tmp_path / "no" / "trace.json")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_lanes_never_overlap_and_are_as_few_as_can_be(spans):
    spans = sorted((start, start + length) for start, length in spans)
    lanes, last = Lanes(), {}
    for start, end in spans:
        lane = lanes.place(start, end)
        assert last.get(lane, -1) <= start
        last[lane] = max(end, start + 1)
    most = max((sum(a <= t < max(b, a + 1) for a, b in spans) for t in range(72)), default=0)
    assert lanes.count == most


def test_the_command_writes_it(tmp_path, capsys):
    run = run_of(tmp_path, HEALTHY)
    out = tmp_path / "timeline.json.gz"
    command = [
        "runs",
        "export",
        run.id,
        "--format",
        "perfetto",
        "--out",
        str(out),
        "--runs-dir",
        str(tmp_path),
    ]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(out)
    check_trace(load(out))
