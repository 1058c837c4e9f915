"""Random lives: every configuration, tiny pools, adds, aborts, resets; the oracle and all invariants
watch each step.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import InvalidInputError
from engine.messages import FinishReason
from tests.scheduler.harness import Harness, make_request
from tests.scheduler.oracle import VOCAB_SIZE

PREFIXES = [[1] * 9, [1] * 5 + [2] * 4, [3, 4, 5, 6, 7, 8, 9, 10, 11], []]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    block_size = draw(st.integers(1, 4))
    max_num_seqs = draw(st.integers(1, 5))
    config = {
        "num_blocks": draw(st.integers(2, 16)),
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.integers(0, 12)),
        "max_model_len": draw(st.none() | st.integers(2, 40)),
        "enable_chunked_prefill": draw(st.integers(0, 3)) > 0,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 3])),
        "max_num_partial_prefills": draw(st.sampled_from([None, None, 1, 2])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "enable_prefix_caching": draw(st.integers(0, 3)) > 0,
        "async_scheduling": draw(st.booleans()),
    }
    if not config["enable_chunked_prefill"]:
        config["max_num_batched_tokens"] = 64
    return config


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    prefix = draw(st.sampled_from(PREFIXES))
    prompt = prefix[: draw(st.integers(0, 9))] + draw(st.lists(st.integers(0, 2), max_size=9))
    max_tokens = draw(st.none() | st.integers(1, 12))
    return {
        "prompt": prompt or [0],
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, min(max_tokens or 3, 3))),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": tuple(draw(st.sets(st.integers(0, VOCAB_SIZE - 1), max_size=1))),
        "priority": draw(st.integers(0, 2)),
        "cache_salt": draw(st.sampled_from([None, None, "a", "b"])),
        "prompt_logprobs": draw(st.sampled_from([None, None, None, 1])),
        "seed": draw(st.integers(0, 1)),
    }


class SchedulerMachine(RuleBasedStateMachine):
    """Ids are reused on purpose, right after an abort."""

    @initialize(config=configs())
    def start(self, config: dict[str, Any]) -> None:
        self.harness = Harness(**config)
        self.live: set[str] = set()
        self.next_id = 0
        self.broken = False

    @rule(request=requests())
    def add(self, request: dict[str, Any]) -> None:
        self._add(str(self.next_id), request)
        self.next_id += 1

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if not self.harness.core.has_work():
                return
            self.broken = True  # until the step is over: what fails here must not fail again in the teardown
            for output in self.harness.step():
                if output.finish_reason is not None:
                    self._ended(output.request_id, output.finish_reason)
            self.broken = False

    @precondition(lambda self: self.live)
    @rule(data=st.data(), readd=st.booleans(), request=requests())
    def abort(self, data: st.DataObject, readd: bool, request: dict[str, Any]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        # What the abort reports is taken straight from the scheduler, so that it can't be mistaken for
        # news of the next request with this id.
        reported = self.harness.scheduler.abort([request_id, "never-existed"])
        assert [output.finish_reason for output in reported] == [FinishReason.ABORT]
        assert self.harness.scheduler.abort([request_id]) == []
        self.live.discard(request_id)
        if readd:
            self._add(request_id, request)

    @rule(running=st.booleans())
    def reset_prefix_cache(self, running: bool) -> None:
        held = self.harness.core.stats().kv_blocks_used > 0
        assert self.harness.core.reset_prefix_cache(reset_running_requests=running) == (running or not held)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "harness"):
            self.harness.core.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "harness") or self.broken:
            return
        while self.harness.core.has_work():
            self.steps(1000)
            assert len(self.harness.executor.plans) < 20_000
        assert not self.live
        self.harness.check_idle()

    def _add(self, request_id: str, fields: dict[str, Any]) -> None:
        fields = dict(fields)
        request = make_request(request_id, fields.pop("prompt"), fields.pop("max_tokens"), **fields)
        limit = self.harness.core.max_request_tokens
        room = limit - len(request.prompt_token_ids)
        try:
            self.harness.add_request(request)
        except InvalidInputError:
            assert room < 1 or request.params.min_tokens > room
            return
        assert room >= 1
        self.live.add(request_id)

    def _ended(self, request_id: str, reason: FinishReason) -> None:
        assert reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.live.remove(request_id)
        self.harness.check_finished(request_id)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
