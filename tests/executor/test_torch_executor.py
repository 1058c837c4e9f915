"""The executor's bookkeeping on plans made by hand."""

from __future__ import annotations

import pytest
import torch

from engine.clock import VirtualClock
from engine.executor.torch_executor import TorchExecutor
from engine.messages import TokenLogprobs
from engine.sampling_params import SamplingParams
from tests.executor.plans import VOCAB_SIZE, SuccessorBackend, new, plan


@pytest.fixture
def backend() -> SuccessorBackend:
    return SuccessorBackend()


@pytest.fixture
def executor(backend: SuccessorBackend) -> TorchExecutor:
    return TorchExecutor(backend, 64, max_num_seqs=4, max_model_len=32, block_size=4)


def test_prefill_in_chunks_then_decode(executor: TorchExecutor, backend: SuccessorBackend) -> None:
    assert backend.num_blocks == executor.num_kv_blocks == 64
    first = executor.execute(plan(0, {"a": (0, 3)}, new_requests=[new("a", [1, 2, 3, 4, 5], [9])]))
    assert first.sampled_token_ids == {}
    second = executor.execute(plan(1, {"a": (3, 2)}, ["a"], blocks={"a": [4]}))
    assert second.sampled_token_ids == {"a": 6}
    third = executor.execute(plan(2, {"a": (5, 1)}, ["a"]))
    assert third.sampled_token_ids == {"a": 7}
    last = backend.batches[-1]
    assert (last.input_ids.tolist(), last.positions.tolist(), last.slot_mapping.tolist()) == ([6], [5], [17])


def test_leavers_go_before_newcomers_come(executor: TorchExecutor) -> None:
    names = ["a", "b", "c", "d"]
    executor.execute(
        plan(
            0,
            dict.fromkeys(names, (0, 1)),
            names,
            new_requests=[new(n, [i], [i + 1]) for i, n in enumerate(names)],
        )
    )
    result = executor.execute(
        plan(
            1,
            {"b": (1, 1), "d": (1, 1), "e": (0, 2), "c2": (0, 1)},
            ["b", "d", "e", "c2"],
            new_requests=[new("e", [30, 31], [7]), new("c2", [40], [8])],
            finished=["a", "never-entered"],
            preempted=["c"],
        )
    )
    assert result.sampled_token_ids == {"b": 3, "d": 5, "e": 32, "c2": 41}


def test_resumed_request_brings_its_output(executor: TorchExecutor, backend: SuccessorBackend) -> None:
    executor.execute(plan(0, {"a": (0, 2)}, ["a"], new_requests=[new("a", [1, 2], [3])]))
    executor.execute(plan(1, {}, preempted=["a"]))
    again = new("a", [1, 2, 3], [5], num_prompt_tokens=2)
    result = executor.execute(plan(2, {"a": (0, 3)}, ["a"], new_requests=[again]))
    assert result.sampled_token_ids == {"a": 4}
    assert backend.batches[-1].input_ids.tolist() == [1, 2, 3]
    # A leftover of the first stay would make this row 4 tokens long by now.
    assert executor.execute(plan(3, {"a": (3, 1)}, ["a"])).sampled_token_ids == {"a": 5}


def test_cached_prefix_is_not_computed(executor: TorchExecutor, backend: SuccessorBackend) -> None:
    request = new("a", [1, 2, 3, 4, 5, 6], [5, 6], computed=4)
    assert executor.execute(plan(0, {"a": (4, 2)}, ["a"], new_requests=[request])).sampled_token_ids == {
        "a": 7
    }
    assert backend.batches[0].slot_mapping.tolist() == [24, 25]
    assert backend.batches[0].block_table.tolist() == [[5, 6]]


def test_a_plan_without_tokens_only_keeps_books(executor: TorchExecutor, backend: SuccessorBackend) -> None:
    result = executor.execute(plan(5, {}, finished=["x"]))
    assert (result.step_id, result.sampled_token_ids, result.t_forward_ns) == (5, {}, None)
    assert backend.batches == []


def test_stamps_are_the_clocks(backend: SuccessorBackend) -> None:
    clock = VirtualClock(100)

    class SlowBackend(SuccessorBackend):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            clock.advance_ns(40)
            return super().forward(batch)

    executor = TorchExecutor(SlowBackend(), 8, 2, 32, 4, clock)
    result = executor.execute(plan(0, {"a": (0, 1)}, ["a"], new_requests=[new("a", [1], [1])]))
    assert (result.t_prepare_ns, result.t_forward_ns, result.t_sample_ns) == (100, 140, 140)


def test_reset_forgets_everyone(executor: TorchExecutor) -> None:
    executor.execute(plan(0, {"a": (0, 1)}, ["a"], new_requests=[new("a", [1], [1])]))
    executor.reset()
    assert executor.execute(
        plan(1, {"a": (0, 1)}, ["a"], new_requests=[new("a", [7], [1])])
    ).sampled_token_ids == {"a": 8}
    executor.shutdown()
    executor.shutdown()


def test_logprobs_come_for_those_who_ask(executor: TorchExecutor) -> None:
    params = SamplingParams(temperature=0.0, logprobs=1)
    requests = [new("a", [1], [1], params=params), new("b", [2], [2])]
    result = executor.execute(plan(0, {"a": (0, 1), "b": (0, 1)}, ["a", "b"], new_requests=requests))
    assert set(result.logprobs) == {"a"}
    assert result.logprobs["a"].token_ids[0] == 2
    assert result.logprobs["a"].rank == 1


def expected_logprob(hit: bool) -> float:
    logits = torch.zeros(VOCAB_SIZE)
    logits[0] = 5.0
    return float(torch.log_softmax(logits, 0)[0 if hit else 1])


def check_prompt_logprobs(scores: list[TokenLogprobs | None], prompt: list[int]) -> None:
    assert scores[0] is None
    assert len(scores) == len(prompt)
    for position in range(1, len(prompt)):
        entry = scores[position]
        assert entry is not None
        assert entry.token_ids[0] == prompt[position]
        hit = prompt[position] == prompt[position - 1] + 1
        assert entry.logprobs[0] == pytest.approx(expected_logprob(hit), abs=1e-5)


PROMPT = [1, 2, 9, 10, 11, 30]
ASKS = SamplingParams(temperature=0.0, prompt_logprobs=0)


@pytest.mark.parametrize("chunks", [[6], [1, 5], [2, 2, 2], [5, 1], [1] * 6], ids=str)
def test_prompt_logprobs_over_chunks(chunks: list[int], executor: TorchExecutor) -> None:
    done = 0
    for step, size in enumerate(chunks):
        entering = [new("a", PROMPT, [1, 2], params=ASKS), new("b", [5], [3])] if step == 0 else []
        last = done + size == len(PROMPT)
        scheduled = {"b": (step, 1), "a": (done, size)}
        result = executor.execute(plan(step, scheduled, ["b", "a"] if last else ["b"], new_requests=entering))
        assert result.sampled_token_ids == ({"b": 6 + step, "a": 31} if last else {"b": 6 + step})
        assert set(result.prompt_logprobs) == ({"a"} if last else set())
        done += size
    check_prompt_logprobs(result.prompt_logprobs["a"], PROMPT)
    after = executor.execute(plan(9, {"a": (6, 1)}, ["a"]))
    assert after.prompt_logprobs == {}


def test_prompt_logprobs_survive_a_preemption(executor: TorchExecutor) -> None:
    executor.execute(plan(0, {"a": (0, 4)}, new_requests=[new("a", PROMPT, [1, 2], params=ASKS)]))
    resumed = new("a", PROMPT, [3, 4], params=ASKS)
    result = executor.execute(plan(1, {"a": (0, 6)}, ["a"], preempted=["a"], new_requests=[resumed]))
    check_prompt_logprobs(result.prompt_logprobs["a"], PROMPT)
    # Preempted again after delivery: nothing is sent twice.
    again = new("a", [*PROMPT, 31], [3, 4], num_prompt_tokens=6, params=ASKS)
    result = executor.execute(plan(2, {"a": (0, 7)}, ["a"], preempted=["a"], new_requests=[again]))
    assert result.prompt_logprobs == {}
    assert result.sampled_token_ids == {"a": 32}


def test_prompt_of_one_token_has_one_empty_entry(executor: TorchExecutor) -> None:
    result = executor.execute(plan(0, {"a": (0, 1)}, ["a"], new_requests=[new("a", [4], [1], params=ASKS)]))
    assert result.prompt_logprobs == {"a": [None]}


def test_an_aborted_prompts_logprobs_are_dropped(executor: TorchExecutor) -> None:
    executor.execute(plan(0, {"a": (0, 2)}, new_requests=[new("a", PROMPT, [1, 2], params=ASKS)]))
    executor.execute(plan(1, {}, finished=["a"]))
    result = executor.execute(plan(2, {"a": (0, 1)}, ["a"], new_requests=[new("a", [4], [1])]))
    assert result.prompt_logprobs == {}
