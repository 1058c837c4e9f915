"""What is refused at entry, and what ends a request."""

from __future__ import annotations

import pytest

from engine.errors import InvalidInputError
from engine.messages import FinishReason
from engine.request import Request
from engine.scheduler.stop import check_stop
from tests.scheduler.harness import Harness, make_request
from tests.scheduler.oracle import EOS


@pytest.mark.parametrize(
    ("config", "prompt", "params", "field"),
    [
        ({"max_model_len": 16}, 16, {}, "prompt"),
        ({"max_model_len": 16}, 100, {}, "prompt"),
        (
            {"num_blocks": 4, "max_model_len": 100},
            16,
            {},
            "prompt",
        ),  # pitfall 9: fits the model, not the pool
        ({"num_blocks": 4, "max_model_len": 100}, 99, {}, "prompt"),
        ({}, [], {}, "prompt"),
        ({}, ["a"], {}, "prompt"),
        ({}, [2**63], {}, "prompt"),
        ({}, 5, {"max_tokens": 0}, "max_tokens"),
        ({"max_model_len": 16}, 10, {"min_tokens": 7, "max_tokens": 9}, "min_tokens"),
        ({"max_model_len": 16}, 10, {"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
    ],
)
def test_what_can_never_be_served_is_refused_and_harms_nobody(config, prompt, params, field):
    harness = Harness(**config)
    harness.add("before", 3)
    with pytest.raises(InvalidInputError) as refused:
        harness.core.add_request(make_request("bad", prompt, **params))
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    harness.add("after", 3)
    harness.drain()
    harness.check_all_finished()


def test_the_refusal_says_what_binds():
    with pytest.raises(
        InvalidInputError, match=r"prompt='20 tokens': at most 15 .*the KV cache holds 16 tokens"
    ):
        Harness(num_blocks=4, max_model_len=100).add("a", 20)
    with pytest.raises(InvalidInputError, match=r"at most 11 .*max_model_len is 12"):
        Harness(num_blocks=4, max_model_len=12).add("a", 20)


def test_an_id_in_use_is_refused():
    """Pitfall 40."""
    harness = Harness()
    harness.add("a", 5)
    with pytest.raises(InvalidInputError, match="request_id='a'"):
        harness.core.add_request(make_request("a", 5))
    harness.drain()
    harness.check_all_finished()


@pytest.mark.parametrize(("num_blocks", "max_model_len", "limit"), [(4, None, 16), (4, 12, 12), (4, 400, 16)])
def test_max_request_tokens(num_blocks, max_model_len, limit):
    harness = Harness(num_blocks=num_blocks, max_model_len=max_model_len)
    assert harness.core.max_request_tokens == limit


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("max_tokens", [None, 1, 50])
def test_prompt_one_short_of_the_limit_gets_exactly_one_token(asynchronous, max_tokens):
    harness = Harness(max_model_len=16, async_scheduling=asynchronous)
    harness.add("a", 15, max_tokens=max_tokens)
    harness.drain()
    assert len(harness.tokens("a")) == 1
    assert harness.outputs["a"][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_lone_request_that_outgrows_the_pool_ends_with_length(asynchronous):
    """Pitfall 12: no loop, no preemption of itself."""
    harness = Harness(num_blocks=3, async_scheduling=asynchronous)
    harness.add("a", 5, max_tokens=1000)
    harness.drain()
    harness.check_all_finished()
    assert len(harness.tokens("a")) == 7
    assert harness.outputs["a"][-1].finish_reason is FinishReason.LENGTH
    assert harness.core.stats().num_preemptions == 0


@pytest.mark.parametrize("watermark", [0.5, 0.99])
def test_the_watermark_never_keeps_a_lone_request_out(watermark):
    harness = Harness(num_blocks=4, watermark=watermark)
    harness.add("a", 15, max_tokens=1)
    harness.add("b", 15, max_tokens=1)
    harness.drain()
    harness.check_all_finished()


def test_chunking_off_needs_a_budget_for_the_longest_request():
    with pytest.raises(InvalidInputError, match=r"max_num_batched_tokens=32: at least 256 .*KV cache"):
        Harness(num_blocks=64, enable_chunked_prefill=False, max_num_batched_tokens=32)
    Harness(num_blocks=8, enable_chunked_prefill=False, max_num_batched_tokens=32)


def request_with(output: list[int], *, room: int = 100, **params) -> Request:
    params.setdefault("ignore_eos", False)
    core_request = make_request("a", [EOS, 5], 100, **params)
    request = Request(core_request, max_total_tokens=2 + room, order=0, queued_ns=0)
    for token in output:
        request.append_output_token(token, 0)
    return request


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([1], {}, None),
        ([EOS], {}, (FinishReason.STOP, None)),
        ([EOS], {"ignore_eos": True}, None),
        ([5], {"stop_token_ids": (5,)}, (FinishReason.STOP, 5)),
        ([EOS], {"stop_token_ids": (EOS,)}, (FinishReason.STOP, None)),  # eos is tested first
        ([EOS], {"stop_token_ids": (EOS,), "ignore_eos": True}, (FinishReason.STOP, EOS)),
        ([1, 2], {"room": 2}, (FinishReason.LENGTH, None)),
        ([1, EOS], {"room": 2}, (FinishReason.STOP, None)),  # eos on the last allowed token
        ([1, 5], {"room": 2, "stop_token_ids": (5,)}, (FinishReason.STOP, 5)),
        ([EOS], {"min_tokens": 2}, None),
        ([5], {"min_tokens": 2, "stop_token_ids": (5,)}, None),
        ([EOS, EOS], {"min_tokens": 2}, (FinishReason.STOP, None)),
        ([1, 2], {"min_tokens": 2, "room": 2}, (FinishReason.LENGTH, None)),
    ],
)
def test_stop_order(output, params, expected):
    assert check_stop(request_with(output, **params)) == expected


def test_finish_reasons_reach_the_output():
    harness = Harness()
    harness.add("length", 3, max_tokens=2)
    harness.add("stop", 3, max_tokens=200, stop_token_ids=tuple(range(6)))
    harness.add("eos", 3, max_tokens=200, ignore_eos=False)
    harness.drain()
    harness.check_all_finished()
    reasons = {name: harness.outputs[name][-1].finish_reason for name in harness.requests}
    assert reasons == {"length": FinishReason.LENGTH, "stop": FinishReason.STOP, "eos": FinishReason.STOP}
    assert harness.outputs["stop"][-1].stop_reason == harness.tokens("stop")[-1]
    assert harness.outputs["eos"][-1].stop_reason is None
