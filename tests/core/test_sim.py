"""The simulator: latencies are exact functions of requests and cost model."""

from __future__ import annotations

import pytest

from engine.clock import MonotonicClock, VirtualClock
from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError
from engine.executor.sim import CostModel, SimExecutor, TokenModel
from engine.messages import FinishReason
from engine.plan import StepPlan
from engine.sampling_params import SamplingParams
from engine.sim import SimRequest, simulate

COST = CostModel(base_ns=1000, per_token_ns=10, per_kv_ns=1, per_attention_ns=0.5, per_request_ns=100)


def sim_request(name: str, length: int, max_tokens: int, offset_ns: int = 0, **fields) -> SimRequest:
    base = 1000 * sum(map(ord, name))
    return SimRequest(
        name,
        list(range(base, base + length)),
        SamplingParams(max_tokens=max_tokens, ignore_eos=fields.pop("ignore_eos", True)),
        offset_ns,
        **fields,
    )


def config(**fields) -> EngineConfig:
    return EngineConfig.create(**{"max_num_batched_tokens": 64, "max_num_seqs": 8, "block_size": 4, **fields})


def plan(scheduled: dict[str, int], computed: dict[str, int]) -> StepPlan:
    return StepPlan(0, [], {}, scheduled, computed, [], [], [])


def test_cost_model():
    assert COST.step_ns(plan({}, {})) == 0
    assert COST.step_ns(plan({"a": 1}, {"a": 6})) == 1000 + 10 + 7 + 100
    assert COST.step_ns(plan({"a": 1, "b": 8}, {"a": 6, "b": 4})) == 1000 + 90 + 7 + 0.5 * 8 * 12 + 200


def test_latencies_to_the_nanosecond():
    result = simulate(config(), [sim_request("a", 8, 3, offset_ns=500)], COST)
    (request,) = result.requests
    prefill = 1000 + 80 + 0.5 * 64 + 100
    first_decode, second_decode = 1000 + 10 + 9 + 100, 1000 + 10 + 10 + 100
    assert request.ttft_ns == prefill
    assert request.itl_ns == [first_decode, second_decode]
    assert request.e2el_ns == prefill + first_decode + second_decode
    assert request.token_times_ns[0] == 500 + prefill
    assert request.timings.queued_ns == 500
    assert result.end_ns == request.finished_ns
    assert [step["t_end"] - step["t_start"] for step in result.steps] == [
        prefill,
        first_decode,
        second_decode,
    ]


def test_a_long_prompt_makes_a_decoding_request_wait_as_long_as_its_chunk():
    """The trade that chunk_size is about."""
    stalls = {}
    for chunk in (16, 64):
        result = simulate(
            config(max_num_batched_tokens=chunk),
            [sim_request("chat", 4, 30), sim_request("long", 200, 1, offset_ns=3000)],
            COST,
        )
        stalls[chunk] = max(result.requests[0].itl_ns)
        assert result.requests[1].finish_reason is FinishReason.LENGTH
    assert stalls[16] < stalls[64]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_runs_are_equal(asynchronous):
    requests = [sim_request(f"r{i}", 1 + i * 7 % 50, 1 + i % 20, offset_ns=i * 3000) for i in range(40)]
    setup = config(async_scheduling=asynchronous, num_gpu_blocks_override=40)
    first, second = (simulate(setup, requests, COST) for _ in range(2))
    assert first == second
    assert first.stats.kv_blocks_used == 0
    assert all(request.finish_reason is FinishReason.LENGTH for request in first.requests)


def test_tokens_do_not_depend_on_the_schedule():
    requests = [sim_request(f"r{i}", 1 + i * 7 % 50, 25, ignore_eos=False) for i in range(20)]
    tokens = TokenModel(vocab_size=100, eos_token_id=7, eos_every=10)
    outputs = {
        tuple(
            tuple(request.token_ids)
            for request in simulate(setup, requests, COST, token_model=tokens).requests
        )
        for setup in (
            config(),
            config(max_num_batched_tokens=8),
            config(num_gpu_blocks_override=25),
            config(async_scheduling=True, enable_prefix_caching=False),
            config(max_num_seqs=1),
        )
    }
    assert len(outputs) == 1
    (output,) = outputs
    assert {7 in tokens for tokens in output} == {True, False}
    assert all(7 not in tokens[:-1] for tokens in output)


def test_prefix_hits_shorten_the_first_token():
    prompt = list(range(40))
    requests = [
        SimRequest(name, prompt, SamplingParams(max_tokens=1), offset_ns=offset)
        for name, offset in (("cold", 0), ("warm", 10**6))
    ]
    cold, warm = simulate(config(), requests, COST).requests
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 36)
    assert warm.ttft_ns == 1000 + 40 + 0.5 * 4 * 40 + 100 < cold.ttft_ns


def test_a_request_that_can_never_be_served_is_refused_and_the_rest_goes_on():
    result = simulate(
        config(num_gpu_blocks_override=5), [sim_request("big", 16, 1), sim_request("ok", 15, 1)], COST
    )
    assert result.requests[0].finish_reason is FinishReason.ERROR
    assert "prompt='16 tokens'" in result.requests[0].error
    assert (result.requests[0].ttft_ns, result.requests[0].e2el_ns) == (None, None)
    assert len(result.requests[1].token_ids) == 1


def test_ids_must_differ():
    with pytest.raises(InvalidInputError, match="ids that differ"):
        simulate(config(), [sim_request("a", 1, 1), sim_request("a", 1, 1)])


def test_events_tell_a_request_s_life():
    result = simulate(config(max_num_batched_tokens=8), [sim_request("a", 10, 2)], COST)
    kinds = [(event["kind"], event["step_id"], event["tokens"], event["value"]) for event in result.events]
    assert kinds == [
        ("queued", None, 10, None),
        ("scheduled", 0, 8, 0),
        ("scheduled", 1, 2, 8),
        ("first_token", 1, None, None),
        ("finished", None, 2, None),
    ]
    assert result.events[-1]["detail"] == "length"


def test_executor_refuses_plans_about_strangers():
    executor = SimExecutor(8, VirtualClock())
    with pytest.raises(EngineError, match="preempted but not in the batch"):
        executor.execute(StepPlan(0, [], {}, {}, {}, [], [], ["x"]))
    with pytest.raises(EngineError, match="samples but is not in the batch"):
        executor.execute(StepPlan(1, [], {}, {"x": 1}, {"x": 0}, ["x"], [], []))


def test_a_real_clock_is_not_moved():
    executor = SimExecutor(8, MonotonicClock(), CostModel(base_ns=1e15))
    result = executor.execute(plan({"a": 1}, {"a": 0}))
    assert result.t_forward_ns - result.t_prepare_ns < 1e12
