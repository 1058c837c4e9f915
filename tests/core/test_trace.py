"""The step trace: what is recorded can be read, after an end and after a crash, and a slow writer costs
rows, not time.
"""

from __future__ import annotations

import errno
import logging
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.errors import InvalidInputError
from engine.executor.sim import SimExecutor
from engine.trace.recorder import NullRecorder, Ring, RingRecorder
from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS
from engine.trace.tables import EVENTS, STEPS, TableSummary, finalize_trace
from engine.trace.writer import TraceWriter
from tests.scheduler.harness import make_request

STEP_ROW = tuple("queue_empty" if kind == "string" else index for index, (_, kind) in enumerate(STEP_COLUMNS))
EVENT_ROW = (1, "ext", "core", "queued", None, 5, None, None)
NO_WAIT = 3600.0
"""Drain interval of a writer that only drains when it is closed."""


def test_ring_keeps_order_and_counts_what_it_drops():
    ring = Ring(3)
    for number in range(5):
        ring.put((number,))
    assert ring.num_dropped == 2
    assert ring.drain() == [(0,), (1,), (2,)]
    ring.put((9,))
    assert ring.drain() == [(9,)]
    assert ring.drain() == []


def test_null_recorder_takes_anything():
    recorder = NullRecorder()
    recorder.record_step(STEP_ROW)
    recorder.record_event(EVENT_ROW)
    recorder.close()
    assert not recorder.enabled


def test_a_core_s_trace_becomes_two_parquet_tables(tmp_path):
    clock = VirtualClock(5)
    trace = TraceWriter(tmp_path / "trace", interval_s=0.01)
    core = EngineCore.create(EngineConfig.create(block_size=4), SimExecutor(32, clock), clock, trace)
    core.add_request(make_request("a", 5, max_tokens=3))
    while core.has_work():
        core.step()
    core.shutdown()
    core.shutdown()
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["events.parquet", "steps.parquet"]
    steps = pq.read_table(tmp_path / "trace" / "steps.parquet")
    events = pq.read_table(tmp_path / "trace" / "events.parquet")
    assert [(field.name, str(field.type)) for field in steps.schema] == list(STEP_COLUMNS)
    assert [(field.name, str(field.type)) for field in events.schema] == list(EVENT_COLUMNS)
    assert steps["step_id"].to_pylist() == [0, 1, 2]
    assert steps["prefill_tokens"].to_pylist() == [5, 0, 0]
    assert events["kind"].to_pylist() == ["queued", "scheduled", "first_token", "finished"]
    metadata = pq.read_metadata(tmp_path / "trace" / "steps.parquet").metadata
    assert (metadata[b"schema_version"], metadata[b"dropped"], metadata[b"complete"]) == (b"1", b"0", b"true")


def test_missing_stamps_are_null(tmp_path):
    trace = TraceWriter(tmp_path, interval_s=NO_WAIT)
    trace.record_step((*STEP_ROW[:3], None, None, None, *STEP_ROW[6:]))
    trace.close()
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table["t_prepare"].to_pylist() == [None]


def test_dropped_rows_are_counted_in_the_table(tmp_path):
    trace = TraceWriter(tmp_path, interval_s=NO_WAIT, step_capacity=4, event_capacity=4)
    for _ in range(10):
        trace.record_step(STEP_ROW)
    trace.record_event(EVENT_ROW)
    trace.close()
    trace.close()
    assert trace.num_dropped == 6
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 4
    assert pq.read_metadata(tmp_path / "steps.parquet").metadata[b"dropped"] == b"6"
    assert pq.read_metadata(tmp_path / "events.parquet").metadata[b"dropped"] == b"0"


def test_an_earlier_trace_is_never_overwritten(tmp_path):
    TraceWriter(tmp_path, interval_s=NO_WAIT).close()
    with pytest.raises(InvalidInputError, match=r"trace_dir=.*a folder without steps.parquet"):
        TraceWriter(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match=r"trace_dir=.*a writable folder"):
        TraceWriter(tmp_path / "file")


CRASH = """
import os, sys, time
from engine.trace.writer import TraceWriter
from tests.core.test_trace import EVENT_ROW, STEP_ROW

trace = TraceWriter(sys.argv[1], interval_s=0.005)
path = sys.argv[1] + "/steps.arrows"
for batch in range(3):
    size = os.path.getsize(path)
    for _ in range(10):
        trace.record_step(STEP_ROW)
    trace.record_event(EVENT_ROW)
    deadline = time.monotonic() + 30
    while os.path.getsize(path) == size and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
os._exit(9)
"""


def test_after_a_crash_what_was_drained_is_there(tmp_path):
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == 9
    stream = (tmp_path / "steps.arrows").read_bytes()
    assert finalize_trace(tmp_path) == [
        TableSummary("steps", 30, 0, complete=False),
        TableSummary("events", 3, 0, complete=False),
    ]
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 30
    assert finalize_trace(tmp_path) == []
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "steps.arrows").write_bytes(stream[:-20])
    (summary,) = finalize_trace(torn)
    assert 0 < summary.num_rows < 30
    assert not summary.complete


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff\xff", b"not arrow at all"])
def test_a_stream_without_a_head_becomes_an_empty_table(tmp_path, content):
    (tmp_path / "steps.arrows").write_bytes(content)
    assert finalize_trace(tmp_path) == [TableSummary("steps", 0, 0, complete=False)]
    assert pq.read_table(tmp_path / "steps.parquet").schema.names == [name for name, _ in STEP_COLUMNS]


def test_a_writer_that_fails_ends_the_trace_not_the_engine(tmp_path, caplog, monkeypatch):
    trace = TraceWriter(tmp_path, interval_s=NO_WAIT)
    trace.record_step(STEP_ROW)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace._streams[0], "_write", full)
    with caplog.at_level(logging.ERROR):
        trace.close()
    assert "ends here: [Errno 28] No space left on device" in caplog.text
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 0


def test_batches_keep_values_and_nulls():
    batch = EVENTS.batch([EVENT_ROW, EVENT_ROW])
    assert batch.to_pylist()[1] == dict(zip([name for name, _ in EVENT_COLUMNS], EVENT_ROW, strict=True))
    assert STEPS.batch([STEP_ROW]).num_columns == len(STEP_COLUMNS)


def test_recording_builds_on_the_ring_alone():
    recorder = RingRecorder(4, 4)
    recorder.record_step(STEP_ROW)
    recorder.record_event(EVENT_ROW)
    assert (recorder.steps.drain(), recorder.events.drain()) == ([STEP_ROW], [EVENT_ROW])


def test_the_first_drain_of_a_process_imports_nothing(tmp_path):
    """An import on the writer's thread holds the interpreter while requests are served."""
    code = (
        "import sys; from engine.trace.writer import TraceWriter; from tests.core.test_trace import *\n"
        "trace = TraceWriter(sys.argv[1], interval_s=NO_WAIT)\n"
        "before = set(sys.modules)\n"
        "trace.record_step(STEP_ROW); trace.record_event(EVENT_ROW)\n"
        "for stream in trace._streams: stream.drain()\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], timeout=120, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
