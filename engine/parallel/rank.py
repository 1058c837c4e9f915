"""What a rank does from its weights to its last step; rank 0 does the same, plan by plan, in the factory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import zmq
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch leaves it out of its stubs

from engine.config import EngineConfig
from engine.executor.base import Executor, pipelined
from engine.executor.factory import RankParts, load_rank
from engine.parallel import wire
from engine.parallel.group import CollectiveGroup
from engine.parallel.shard import Shard
from engine.plan import StepPlan, StepResult


def connect(store: str, shard: Shard, device: torch.device, timeout_s: float) -> CollectiveGroup:
    """Join the group; waits for all ranks."""
    return CollectiveGroup(FileStore(store, shard.size), shard.rank, shard.size, device, timeout_s)


class StepQueue:
    """The steps of a rank: begun as soon as they come, answered in their order when their tokens are there.

    Args:
        executor: one that can't queue runs a step to its end at once.
        answer: gets a :class:`engine.parallel.wire.Done` for every step.
    """

    def __init__(self, executor: Executor, answer: Callable[[wire.Done], None]) -> None:
        self.executor = executor
        self._steps = pipelined(executor)
        self._answer = answer
        self._begun: deque[tuple[bytes, Any]] = deque()

    def __bool__(self) -> bool:
        """Whether a step is under way."""
        return bool(self._begun)

    def begin(self, message: bytes, plan: StepPlan) -> None:
        begun = self._steps.begin(plan)
        if isinstance(begun, StepResult):
            self._confirm(message, begun)
        else:
            self._begun.append((message, begun))

    def answer_ready(self) -> None:
        """Answer the oldest step if its tokens are there."""
        if self._begun and self._steps.ready(self._begun[0][1]):
            message, step = self._begun.popleft()
            self._confirm(message, self._steps.finish(step))

    def _confirm(self, message: bytes, result: StepResult) -> None:
        self._answer(wire.Done(result.step_id, wire.checksum(message, result)))


def serve(setup: wire.Setup, socket: zmq.Socket[bytes]) -> None:
    """Load, then answer rank 0 until it says stop."""
    config = EngineConfig.model_validate_json(setup.config_json)
    shard = Shard(setup.rank, setup.size)
    decode = wire.to_worker_decoder().decode
    parts: RankParts = load_rank(config, shard)
    socket.send(wire.encode(wire.Loaded()))
    steps: StepQueue | None = None
    while True:
        # While a step is under way this looks for its end and for the next plan, without a sleep: a GPU
        # that waits for its next step costs more than this core.
        while steps and not socket.poll(0):
            steps.answer_ready()
        raw = socket.recv()
        match decode(raw):
            case wire.Connect():
                parts.build_backend(connect(setup.store, shard, parts.device, setup.timeout_s))
                socket.send(wire.encode(wire.Sized(parts.size_kv())))
            case wire.Allocate(num_blocks):
                executor = parts.build_executor(num_blocks)
                steps = StepQueue(executor, lambda done: socket.send(wire.encode(done)))
                socket.send(wire.encode(wire.Ready()))
            case wire.Step(plan) if steps is not None:
                steps.begin(raw, plan)
            case wire.Reset() if steps is not None:
                steps.executor.reset()
            case wire.Stop():
                return
            case unexpected:
                raise RuntimeError(f"{type(unexpected).__name__} came too early")
