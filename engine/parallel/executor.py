"""Rank 0's executor: sends each plan to the other ranks, runs its own part, and checks that all agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import EngineError
from engine.executor.base import Executor, pipelined
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


@dataclass(frozen=True, slots=True)
class _Queued:
    """A step that every rank was sent; ``begun`` is rank 0's part."""

    message: bytes
    begun: Any


class TensorParallelExecutor:
    """An :class:`engine.executor.base.Executor`. Every rank keeps its own batch and samples; equal plans and
    equal logits give equal tokens, which is checked after every step.

    Args:
        inner: rank 0's part.
        peers: the others, ready for steps.
    """

    def __init__(self, inner: Executor, peers: Peers) -> None:
        self._inner = inner
        self._steps = pipelined(inner)
        self._peers = peers

    @property
    def num_kv_blocks(self) -> int:
        return self._inner.num_kv_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        """
        Raises:
            EngineError: a rank ended, did not answer in time, or came to another result.
        """
        return self.finish(self.begin(plan))

    def begin(self, plan: StepPlan) -> _Queued | StepResult:
        """Queue ``plan`` on every rank; where ranks can't queue, all of them run it to its end."""
        self._peers.check()
        message = wire.encode(wire.Step(plan))
        self._peers.send(message)
        with self._explained():
            begun = self._steps.begin(plan)
        if not isinstance(begun, StepResult):
            return _Queued(message, begun)
        self._confirm(message, begun)
        return begun

    def finish(self, step: _Queued | StepResult) -> StepResult:
        if isinstance(step, StepResult):
            return step
        with self._explained():
            result = self._steps.finish(step.begun)
        self._confirm(step.message, result)
        return result

    def ready(self, step: _Queued | StepResult) -> bool:
        return isinstance(step, StepResult) or self._steps.ready(step.begun)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A collective that failed is reported as the end of the rank that it was."""
        try:
            yield
        except RanksLostError as error:
            raise self._peers.explain(error) from error

    def _confirm(self, message: bytes, result: StepResult) -> None:
        step_id, own = result.step_id, wire.checksum(message, result)
        for rank, done in enumerate(self._peers.receive(wire.Done, self._peers.timeout_s), start=1):
            if (done.step_id, done.checksum) != (step_id, own):
                raise EngineError(
                    f"step {step_id}: tensor-parallel rank {rank} diverged from rank 0 "
                    f"(step {done.step_id}, checksum {done.checksum:08x} against {own:08x})"
                )

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
