"""What rank 0 does with the other ranks' answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.errors import EngineError
from engine.executor.torch_executor import TorchExecutor
from engine.parallel import wire
from engine.parallel.executor import TensorParallelExecutor
from engine.parallel.group import RanksLostError
from engine.plan import StepPlan, StepResult
from tests.executor.plans import SuccessorBackend, new, plan

FIRST = plan(7, {"a": (0, 3)}, ["a"], new_requests=[new("a", [4, 5, 6], [1])])


@dataclass
class ScriptedPeers:
    """Ranks that run the plan they are sent, as workers do; then ``tamper`` changes the answer."""

    tamper: wire.Done | None = None
    ended: EngineError | None = None
    timeout_s: float = 1.0
    sent: list[bytes] = field(default_factory=list)
    stopped: int = 0

    def __post_init__(self) -> None:
        self._executor = TorchExecutor(SuccessorBackend(), 8, 4, 64, 4)
        self._decode = wire.to_worker_decoder().decode

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def receive(self, kind: type[wire.Done], timeout_s: float) -> Sequence[wire.Done]:
        step = self._decode(self.sent[-1])
        assert isinstance(step, wire.Step)
        result = self._executor.execute(step.plan)
        return [self.tamper or wire.Done(step.plan.step_id, wire.checksum(self.sent[-1], result))]

    def check(self) -> None:
        if self.ended is not None:
            raise self.ended

    def explain(self, error: Exception) -> Exception:
        return self.ended or error

    def stop(self) -> None:
        self.stopped += 1


def executor(peers: ScriptedPeers) -> TensorParallelExecutor:
    return TensorParallelExecutor(TorchExecutor(SuccessorBackend(), 8, 4, 64, 4), peers)


def test_ranks_that_run_the_sent_plan_agree() -> None:
    peers = ScriptedPeers()
    rank_0 = executor(peers)
    assert rank_0.execute(FIRST).sampled_token_ids == {"a": 7}
    second = plan(8, {"a": (3, 1)}, ["a"])
    assert rank_0.execute(second).sampled_token_ids == {"a": 8}
    rank_0.reset()
    rank_0.shutdown()
    assert peers.stopped == 1
    assert rank_0.num_kv_blocks == 8


@pytest.mark.parametrize("answer", [wire.Done(7, 1), wire.Done(6, 0)])
def test_another_checksum_is_a_divergence(answer: wire.Done) -> None:
    with pytest.raises(EngineError, match="step 7: tensor-parallel rank 1 diverged from rank 0"):
        executor(ScriptedPeers(tamper=answer)).execute(FIRST)


def test_the_checksum_covers_plan_and_tokens() -> None:
    sums = {
        wire.checksum(message, StepResult(1, tokens))
        for message in (b"plan", b"plam")
        for tokens in ({"a": 1}, {"a": 2}, {})
    }
    assert len(sums) == 6


def test_a_rank_that_has_ended_is_reported_before_anything_is_sent() -> None:
    peers = ScriptedPeers(ended=EngineError("rank 1 ended"))
    with pytest.raises(EngineError, match="rank 1 ended"):
        executor(peers).execute(FIRST)
    assert peers.sent == []
    with pytest.raises(EngineError, match="rank 1 ended"):
        executor(peers).check_health()


def test_a_lost_collective_is_explained_by_the_rank_that_ended() -> None:
    class Lost:
        num_kv_blocks = 8

        def execute(self, _: StepPlan) -> StepResult:
            peers.ended = EngineError("rank 1 ended by signal 9")
            raise RanksLostError("no answer")

        def reset(self) -> None: ...

        def shutdown(self) -> None: ...

    peers = ScriptedPeers()
    with pytest.raises(EngineError, match="rank 1 ended by signal 9"):
        TensorParallelExecutor(Lost(), peers).execute(FIRST)


@pytest.mark.parametrize(
    "message",
    [wire.Step(FIRST), wire.Connect(), wire.Allocate(5), wire.Reset(), wire.Stop()],
    ids=lambda message: type(message).__name__,
)
def test_messages_survive_the_wire(message: wire.ToWorker) -> None:
    assert wire.to_worker_decoder().decode(wire.encode(message)) == message
