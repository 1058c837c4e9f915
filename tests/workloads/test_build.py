"""The request list: seed fixes shape, nonce fixes content, mix is exact, lengths are exact."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import Arrivals, RequestClass, WorkloadError, WorkloadSpec, build, load_workload, preset_names
from workloads.content import id_range

MIXED = WorkloadSpec(
    name="mixed",
    arrivals=Arrivals(kind="poisson", rate=5.0),
    classes=(
        RequestClass(name="chat", weight=3, input_tokens=(64, 128), output_tokens=48),
        RequestClass(name="document", weight=1, input_tokens=(1500, 3000), output_tokens=16),
    ),
)


def shape_of(requests):
    return [(r.index, r.offset_ns, r.group, r.max_tokens, r.num_prompt_tokens) for r in requests]


def content_of(requests):
    return [r.prompt_token_ids.tolist() for r in requests]


@given(seed=st.integers(0, 2**31), count=st.integers(1, 60))
def test_same_seed_and_nonce_give_the_same_bytes(seed, count):
    first = build(MIXED, seed=seed, nonce="a", num_requests=count)
    second = build(MIXED, seed=seed, nonce="a", num_requests=count)
    assert shape_of(first) == shape_of(second)
    assert content_of(first) == content_of(second)


@given(seed=st.integers(0, 2**31))
def test_nonce_changes_every_prompt_and_nothing_else(seed):
    first = build(MIXED, seed=seed, nonce="a", num_requests=20)
    second = build(MIXED, seed=seed, nonce="b", num_requests=20)
    assert shape_of(first) == shape_of(second)
    for one, other in zip(content_of(first), content_of(second), strict=True):
        assert one[:16] != other[:16]  # not even one KV block in common


def test_reuse_content_ignores_the_nonce():
    spec = MIXED.model_copy(update={"reuse_content": True})
    assert content_of(build(spec, seed=1, nonce="a")) == content_of(build(spec, seed=1, nonce="b"))


def test_the_list_is_the_same_in_another_process():
    code = (
        "import hashlib; from tests.workloads.test_build import MIXED, shape_of, content_of, build;"
        "r = build(MIXED, seed=7, nonce='n', num_requests=10);"
        "print(hashlib.sha256(repr((shape_of(r), content_of(r))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@given(count=st.integers(1, 400), seed=st.integers(0, 1000))
def test_the_mix_is_exact_whatever_the_seed(count, seed):
    requests = build(MIXED, seed=seed, nonce="", num_requests=count)
    chats = sum(r.group == "chat" for r in requests)
    assert abs(chats - count * 0.75) <= 0.5
    assert len(requests) == count


def test_prompts_have_the_length_they_claim_and_ordinary_ids():
    low, high = id_range(1000)
    for request in build(MIXED, seed=3, nonce="x", num_requests=40, vocab_size=1000):
        ids = request.prompt_token_ids
        assert len(ids) == request.num_prompt_tokens
        assert low <= ids.min()
        assert ids.max() < high
        bounds = (64, 128) if request.group == "chat" else (1500, 3000)
        assert bounds[0] <= len(ids) <= bounds[1]


@pytest.mark.parametrize("length", [1, 2])
def test_the_shortest_prompts(length):
    spec = WorkloadSpec(classes=(RequestClass(input_tokens=length, output_tokens=1),))
    assert {len(r.prompt_token_ids) for r in build(spec, seed=0, nonce="", num_requests=5)} == {length}


def test_prefix_groups_share_exactly_their_prefix():
    spec = WorkloadSpec(
        classes=(RequestClass(input_tokens=48, output_tokens=1, prefix_tokens=32, num_prefixes=3),)
    )
    prompts = content_of(build(spec, seed=0, nonce="n", num_requests=9))
    heads = {tuple(p[:32]) for p in prompts}
    assert len(heads) == 3
    assert prompts[0][:32] == prompts[3][:32] == prompts[6][:32]
    assert len({tuple(p[32:]) for p in prompts}) == 9


def test_duration_ends_the_schedule():
    requests = build(MIXED, seed=5, nonce="", duration_s=30.0)
    assert all(r.offset_ns < 30e9 for r in requests)
    assert requests[-1].offset_ns > 28e9  # the list was not cut short by its own length
    assert [r.index for r in requests] == list(range(len(requests)))


def test_ten_thousand_long_prompts_are_arrays_not_lists():
    spec = WorkloadSpec(classes=(RequestClass(input_tokens=4000, output_tokens=1),))
    requests = build(spec, seed=0, nonce="", num_requests=2000)
    assert sum(r.prompt_token_ids.size for r in requests) == 8_000_000
    assert requests[0].prompt_token_ids.dtype == np.int32


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_builds(name):
    spec = load_workload(name)
    requests = build(spec, seed=0, nonce="", num_requests=12, rate=1.0)
    assert sum(r.turn == 0 for r in requests) == 12
    assert [r.index for r in requests] == list(range(len(requests)))
    assert spec.name == name
    assert spec.max_total_tokens >= max((r.num_prompt_tokens or 0) + r.max_tokens for r in requests)


def test_the_default_of_chunk_size_sweeps_mixes_chats_and_documents():
    spec = load_workload("chat-and-documents")
    groups = {c.name: c for c in spec.classes}
    assert groups["document"].input_tokens.low >= 1000
    assert groups["chat"].input_tokens.high <= 256
    assert spec.slo is not None
    assert spec.arrivals.utilisation is not None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"num_requests": 0}, "num_requests"),
        ({"duration_s": -1.0}, "duration"),
        ({"rate": -3.0}, "rate"),
        ({"vocab_size": 4}, "vocab_size"),
        ({"max_model_len": 100}, "workload"),
    ],
)
def test_refusals_name_the_field(arguments, field):
    with pytest.raises(WorkloadError) as caught:
        build(MIXED, seed=0, nonce="", **{"num_requests": 3, **arguments})
    assert caught.value.field == field


def test_arrivals_with_a_rate_need_one():
    spec = load_workload("chat")
    with pytest.raises(WorkloadError, match="rate=None"):
        build(spec, seed=0, nonce="")
