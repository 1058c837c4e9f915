"""Rank 0's executor: sends each plan to the other ranks, runs its own part, and checks that all agree."""

from __future__ import annotations

from typing import Protocol

from engine.errors import EngineError
from engine.executor.base import Executor
from engine.parallel import wire
from engine.parallel.group import RanksLostError
from engine.plan import StepPlan, StepResult


class Peers(Protocol):
    """The other ranks; :class:`engine.parallel.workers.Workers`."""

    timeout_s: float

    def send(self, message: bytes) -> None: ...

    def receive(self, kind: type[wire.Done], timeout_s: float) -> list[wire.Done]: ...

    def check(self) -> None: ...

    def explain(self, error: Exception) -> Exception: ...

    def stop(self) -> None: ...


class TensorParallelExecutor:
    """An :class:`engine.executor.base.Executor`. Every rank keeps its own batch and samples; equal plans and
    equal logits give equal tokens, which is checked after every step.

    Args:
        inner: rank 0's part.
        peers: the others, ready for steps.
    """

    def __init__(self, inner: Executor, peers: Peers) -> None:
        self._inner = inner
        self._peers = peers

    @property
    def num_kv_blocks(self) -> int:
        return self._inner.num_kv_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        """
        Raises:
            EngineError: a rank ended, did not answer in time, or came to another result.
        """
        self._peers.check()
        message = wire.encode(wire.Step(plan))
        self._peers.send(message)
        try:
            result = self._inner.execute(plan)
        except RanksLostError as error:
            raise self._peers.explain(error) from error
        own = wire.checksum(message, result)
        for rank, done in enumerate(self._peers.receive(wire.Done, self._peers.timeout_s), start=1):
            if (done.step_id, done.checksum) != (plan.step_id, own):
                raise EngineError(
                    f"step {plan.step_id}: tensor-parallel rank {rank} diverged from rank 0 "
                    f"(step {done.step_id}, checksum {done.checksum:08x} against {own:08x})"
                )
        return result

    def check_health(self) -> None:
        """
        Raises:
            EngineError: a rank has ended. For when no step runs.
        """
        self._peers.check()

    def reset(self) -> None:
        self._peers.send(wire.encode(wire.Reset()))
        self._inner.reset()

    def shutdown(self) -> None:
        self._peers.stop()
        self._inner.shutdown()
