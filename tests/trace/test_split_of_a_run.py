"""The time split of a real run: streamed requests, aborted ones, and a pool so small that it preempts."""

from __future__ import annotations

import pytest

from tests.helpers.tiny_model import make_tiny_model
from workbench.bench import BenchSpec, run_bench
from workbench.runstore import RunStore
from workbench.timeline.segments import PREEMPTED, RECOMPUTE
from workbench.timeline.split import PARTS, split_frame, split_run
from workloads import Arrivals, RequestClass, WorkloadSpec

WORKLOAD = WorkloadSpec(
    name="tight",
    arrivals=Arrivals(kind="burst"),
    classes=(RequestClass(name="chat", input_tokens=(8, 24), output_tokens=60),),
    num_requests=12,
)
ENGINE = {
    "dtype": "float32",
    "num_threads": 1,
    "max_model_len": 128,
    "num_gpu_blocks_override": 14,
    "enable_prefix_caching": False,
    "attention_backend": "reference",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model = str(make_tiny_model(tmp_path_factory.mktemp("model")))
    spec = BenchSpec.create(
        workload=WORKLOAD,
        engine={"model": model, **ENGINE},
        warmup_requests=1,
        cancellation_rate=0.25,
        cancellation_delay_s=0.02,
        nonce="n",
    )
    return run_bench(spec, RunStore(tmp_path_factory.mktemp("runs")))


def test_every_request_is_accounted_for_to_the_nanosecond(run):
    splits = split_run(run)
    assert len(splits) == 13
    assert {one.status for one in splits} == {"ok", "cancelled"}
    for one in splits:
        assert one.parts is not None
        assert sum(one.parts.values()) == one.e2el_ns
        assert min(one.parts.values()) >= 0
        if one.first_ns is not None:
            assert one.first_parts is not None
            assert sum(one.first_parts.values()) == one.first_ns - one.sent_ns
    # Every chunk that was streamed lies inside the request's time.
    ends = {one.request_id: one.end_ns for one in splits}
    chunks = run.arrow("chunks").to_pylist()
    assert len(chunks) > 9 * 60
    assert all(row["recv_ns"] <= ends[row["request_id"]] for row in chunks if row["n_tokens"])


def test_preempted_requests_lost_time_and_computed_again(run):
    victims = [one for one in split_run(run) if one.life is not None and one.life.num_preemptions]
    assert victims
    assert sum(one.parts[PREEMPTED] for one in victims) > 0
    assert sum(one.parts[RECOMPUTE] for one in victims) > 0
    events = run.arrow("events").to_pylist()
    preemptions = sum(row["kind"] == "preempted" for row in events)
    assert sum(one.life.num_preemptions for one in victims) == preemptions


def test_the_frame_has_a_row_a_request(run):
    frame = split_frame(split_run(run))
    parts = frame[[f"{part}_ns" for part in PARTS]].sum(axis=1)
    assert (parts == frame["e2el_ns"]).all()
    assert frame.loc[frame["status"] == "ok", "traced"].all()
