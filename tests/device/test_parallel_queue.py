"""Several ranks on devices: steps are queued one ahead on all of them, and compared when tokens come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.errors import EngineError
from engine.parallel import wire
from engine.parallel.executor import TensorParallelExecutor
from engine.parallel.rank import StepQueue
from tests.device.machine import machine, plain_executor
from tests.device.test_executor import SAMPLED, life, queued_tokens, tokens_of


@dataclass
class QueuedPeer:
    """Another rank on its own fake device, which takes its time: it is asked for results again and again."""

    timeout_s: float = 1.0
    log: list[str] = field(default_factory=list)
    tampered: int | None = None

    def __post_init__(self) -> None:
        self._answers: deque[wire.Done] = deque()
        self._steps = StepQueue(machine((1, 2, 4)).executor, self._answers.append)
        self._decode = wire.to_worker_decoder().decode

    def send(self, message: bytes) -> None:
        step = self._decode(message)
        assert isinstance(step, wire.Step)
        self.log.append(f"step {step.plan.step_id}")
        self._steps.begin(message, step.plan)

    def receive(self, kind: type[wire.Done], timeout_s: float) -> Sequence[wire.Done]:
        for _ in range(2 if self._steps else 0):  # the fake device has come to it when asked again
            self._steps.answer_ready()
        done = self._answers.popleft()
        self.log.append(f"done {done.step_id}")
        return [wire.Done(done.step_id, 0) if done.step_id == self.tampered else done]

    def check(self) -> None: ...

    def explain(self, error: Exception) -> Exception:
        return error

    def stop(self) -> None: ...


def test_ranks_on_devices_queue_and_agree() -> None:
    peer = QueuedPeer()
    rank_0 = TensorParallelExecutor(machine((1, 2, 4)).executor, peer)
    expected = tokens_of(plain_executor(), life([SAMPLED] * 3))
    assert queued_tokens(rank_0, life([SAMPLED] * 3)) == expected
    assert peer.log[:5] == ["step 0", "step 1", "done 0", "step 2", "done 1"]
    assert peer.log[-2:] == ["done 7", "done 8"]


def test_a_divergence_is_seen_before_the_tokens_go_out() -> None:
    rank_0 = TensorParallelExecutor(machine((1, 2, 4)).executor, QueuedPeer(tampered=1))
    steps = life([SAMPLED] * 3)
    first, second = rank_0.begin(steps[0]), rank_0.begin(steps[1])
    rank_0.finish(first)
    with pytest.raises(EngineError, match="step 1: tensor-parallel rank 1 diverged"):
        rank_0.finish(second)


def test_a_step_under_way_is_answered_when_its_tokens_are_there() -> None:
    answers: list[wire.Done] = []
    steps = StepQueue(machine().executor, answers.append)
    plan = life([SAMPLED] * 3)[0]
    message = wire.encode(wire.Step(plan))
    steps.begin(message, plan)
    assert steps
    steps.answer_ready()
    assert answers == []  # the device has not come to it
    steps.answer_ready()
    assert not steps
    assert [done.step_id for done in answers] == [0]
    steps.answer_ready()
    assert len(answers) == 1


def test_an_executor_without_a_queue_is_answered_at_once() -> None:
    answers: list[wire.Done] = []
    steps = StepQueue(plain_executor(), answers.append)
    plan = life([SAMPLED] * 3)[0]
    message = wire.encode(wire.Step(plan))
    steps.begin(message, plan)
    assert not steps
    expected = plain_executor().execute(plan)
    assert answers == [wire.Done(0, wire.checksum(message, expected))]
