"""The time split: exact whatever happens to a request, against the core's own events on virtual time."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.sim import SimExecutor
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from engine.trace.recorder import ListRecorder
from engine.trace.tables import EVENTS, STEPS
from workbench.timeline.segments import DECODE, PREEMPTED, PREFILL, QUEUE, RECOMPUTE, StepTimes
from workbench.timeline.split import OUTPUT, PARTS, cut, engine_lives, split_requests, step_times

MS = 1_000_000


def traced(config: EngineConfig, arrivals, aborts=()):
    """Serve (offset_ns, prompt, output) on virtual time, abort (step, index); lives and the client's rows."""
    clock, trace = VirtualClock(1000), ListRecorder()
    core = EngineCore.create(config, SimExecutor(config.num_gpu_blocks_override or 64, clock), clock, trace)
    coming = sorted((1000 + offset, i, prompt, output) for i, (offset, prompt, output) in enumerate(arrivals))
    first, last, sent, step = {}, {}, {}, 0
    while coming or core.has_work():
        while coming and coming[0][0] <= clock.now_ns():
            at, i, prompt, output = coming.pop(0)
            sent[i] = at - 300
            core.add_request(
                EngineCoreRequest(
                    request_id=f"r{i}#0",
                    external_id=f"r{i}",
                    prompt_token_ids=list(range(i * 1000, i * 1000 + prompt)),
                    params=SamplingParams(max_tokens=output, ignore_eos=True),
                    eos_token_ids=[],
                    arrival_ns=at,
                    submitted_ns=at - 100,
                )
            )
        if not core.has_work():
            clock.advance_to_ns(coming[0][0])
            continue
        for output in core.step().outputs:
            if output.new_token_ids:
                index = int(output.request_id[1:].split("#")[0])
                first.setdefault(index, clock.now_ns() + 50)
                last[index] = clock.now_ns() + 50
        step += 1
        core.abort_requests([f"r{i}#0" for when, i in aborts if when == step and i in sent])
    steps = step_times(pa.Table.from_batches([STEPS.batch(trace.steps)]) if trace.steps else None)
    lives = engine_lives(pa.Table.from_batches([EVENTS.batch(trace.events)]), steps)
    rows = [
        {
            "request_id": f"r{i}",
            "phase": "measure",
            "group": "",
            "status": "ok",
            "intended_ns": sent[i] - 40,
            "released_ns": sent[i] - 40,
            "sent_ns": sent[i],
            "first_token_ns": first.get(i),
            "last_token_ns": last.get(i),
            "close_ns": clock.now_ns() + 60,
            "prompt_tokens": 1,
            "output_tokens": 1,
        }
        for i in sorted(sent)
    ]
    return split_requests(rows, lives), lives, trace, core


def check(splits, trace, core):
    preempted = [e for e in trace.events if e[3] == "preempted"]
    assert sum(s.life.num_preemptions for s in splits) == len(preempted)
    assert sum(s.life.lost_tokens for s in splits) == sum(e[5] for e in preempted)
    for one in splits:
        assert sum(one.parts.values()) == one.e2el_ns
        assert min(one.parts.values()) >= 0
        assert one.client_lag_ns == 40
        assert one.life.complete
        segments = one.life.segments
        assert all(a.end_ns == b.start_ns for a, b in pairwise(segments))
        if one.first_ns is not None:
            assert sum(one.first_parts.values()) == one.first_ns - one.sent_ns
            assert one.first_parts[DECODE] == 0
        assert (one.parts[RECOMPUTE] > 0) <= (one.life.num_preemptions > 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40 * MS), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12
    ),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 11)), max_size=4),
    st.booleans(),
    st.sampled_from([8, 64]),
    st.sampled_from([24, 200]),
    st.booleans(),
)
def test_parts_sum_to_the_nanosecond(arrivals, aborts, asynchronous, budget, blocks, caching):
    config = EngineConfig.create(
        max_num_batched_tokens=budget,
        max_num_seqs=8,
        block_size=4,
        num_gpu_blocks_override=blocks,
        async_scheduling=asynchronous,
        enable_prefix_caching=caching,
    )
    splits, _, trace, core = traced(config, arrivals, aborts)
    check(splits, trace, core)


def test_preempted_twice():
    config = EngineConfig.create(
        max_num_batched_tokens=16,
        max_num_seqs=8,
        block_size=4,
        num_gpu_blocks_override=20,
        enable_prefix_caching=False,
    )
    splits, _, trace, core = traced(config, [(i * 1000, 8, 28) for i in range(8)])
    check(splits, trace, core)
    worst = max(splits, key=lambda s: s.life.num_preemptions)
    assert worst.life.num_preemptions >= 2
    assert worst.parts[PREEMPTED] > 0
    assert worst.parts[RECOMPUTE] > 0
    # Without a prefix cache everything lost is computed again.
    assert worst.life.recomputed_tokens == worst.life.lost_tokens


def test_one_request_alone_by_hand():
    splits, lives, trace, _ = traced(
        EngineConfig.create(max_num_batched_tokens=8, max_num_seqs=4, block_size=4), [(0, 10, 3)]
    )
    (one,) = splits
    steps = [dict(zip(STEPS.schema.names, row, strict=True)) for row in trace.steps]
    assert [step["prefill_tokens"] for step in steps] == [8, 2, 0, 0]
    first, second, third, fourth = (step["t_end"] - step["t_start"] for step in steps)
    assert one.parts == {
        **dict.fromkeys(PARTS, 0),
        "front_end": 200,
        QUEUE: 100,
        PREFILL: first + second,
        DECODE: third + fourth,
        OUTPUT: 50,
    }
    assert [(s.state, s.step_id, s.tokens) for s in lives["r0"][0].segments] == [
        (QUEUE, None, None),
        (PREFILL, 0, 8),
        (PREFILL, 1, 2),
        (DECODE, None, None),
    ]


def test_the_sequence_that_ends_last_decides_and_strangers_have_no_parts():
    splits, lives, _, _ = traced(EngineConfig.create(block_size=4, max_num_seqs=8), [(0, 4, 3), (0, 4, 9)])
    row = {
        "request_id": "r0",
        "phase": "measure",
        "group": "",
        "status": "ok",
        "intended_ns": None,
        "released_ns": None,
        "sent_ns": splits[0].sent_ns,
        "first_token_ns": splits[0].first_ns,
        "last_token_ns": splits[1].end_ns,
        "close_ns": None,
        "prompt_tokens": 4,
        "output_tokens": 12,
    }
    (both,) = split_requests([row], {"r0": [lives["r0"][0], lives["r1"][0]]})
    assert both.life is lives["r1"][0]
    (alone,) = split_requests([row], {})
    assert (alone.life, alone.parts, alone.first_parts) == (None, None, None)
    assert split_requests([{**row, "sent_ns": None}], lives) == []


def test_a_request_that_never_came_to_the_core_was_in_the_front_end():
    splits, lives, _, _ = traced(EngineConfig.create(block_size=4, max_num_seqs=8), [(0, 4, 9)])
    sent = splits[0].sent_ns
    row = {
        **dict.fromkeys(("intended_ns", "released_ns", "first_token_ns", "last_token_ns", "output_tokens")),
        "request_id": "x",
        "phase": "measure",
        "group": "",
        "status": "cancelled",
        "prompt_tokens": 4,
        "sent_ns": sent,
        "close_ns": sent + 700,
    }
    (one,) = split_requests([row], lives)
    assert (one.life, one.first_parts) == (None, None)
    assert one.parts == {**dict.fromkeys(PARTS, 0), "front_end": 700}
    # Not when the trace had ended, nor of a request that was answered: then rows are missing.
    for change in ({"close_ns": splits[0].end_ns + 10**9}, {"status": "ok"}):
        assert split_requests([{**row, **change}], lives)[0].parts is None


def test_a_client_that_left_does_not_wait_for_the_engine():
    splits, lives, _, _ = traced(EngineConfig.create(block_size=4, max_num_seqs=8), [(0, 4, 9)])
    life = lives["r0"][0]
    end = life.first_token_ns + 10
    parts = cut(life, splits[0].sent_ns, end)
    assert sum(parts.values()) == end - splits[0].sent_ns
    assert parts[DECODE] <= 10
    before = cut(life, splits[0].sent_ns, splits[0].sent_ns + 5)
    assert before == {**dict.fromkeys(PARTS, 0), "front_end": 5}


def test_a_missing_step_row_is_noted_and_sums_stay_exact():
    _, _, trace, _ = traced(
        EngineConfig.create(block_size=4, max_num_seqs=8, max_num_batched_tokens=8), [(0, 30, 5)]
    )
    steps = step_times(pa.Table.from_batches([STEPS.batch(trace.steps[2:])]))
    (life,) = engine_lives(pa.Table.from_batches([EVENTS.batch(trace.events)]), steps)["r0"]
    assert not life.complete
    assert sum(cut(life, 500, life.end_ns + 7).values()) == life.end_ns + 7 - 500


def test_no_steps_at_all():
    times = step_times(None)
    assert isinstance(times, StepTimes)
    assert len(times) == 0
    assert times.span(3) is None
