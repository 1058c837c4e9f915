"""What a rank does from its weights to its last step; rank 0 does the same, plan by plan, in the factory."""

from __future__ import annotations

import torch
import zmq
from torch.distributed import FileStore  # type: ignore[attr-defined]

from engine.config import EngineConfig
from engine.executor.base import Executor
from engine.executor.factory import RankParts, load_rank
from engine.parallel import wire
from engine.parallel.group import CollectiveGroup
from engine.parallel.shard import Shard


def connect(store: str, shard: Shard, device: torch.device, timeout_s: float) -> CollectiveGroup:
    """Join the group; waits for all ranks."""
    return CollectiveGroup(FileStore(store, shard.size), shard.rank, shard.size, device, timeout_s)


def serve(setup: wire.Setup, socket: zmq.Socket[bytes]) -> None:
    """Load, then answer rank 0 until it says stop."""
    config = EngineConfig.model_validate_json(setup.config_json)
    shard = Shard(setup.rank, setup.size)
    decode = wire.to_worker_decoder().decode
    parts: RankParts = load_rank(config, shard)
    socket.send(wire.encode(wire.Loaded()))
    executor: Executor | None = None
    while True:
        raw = socket.recv()
        match decode(raw):
            case wire.Connect():
                parts.build_backend(connect(setup.store, shard, parts.device, setup.timeout_s))
                socket.send(wire.encode(wire.Sized(parts.size_kv())))
            case wire.Allocate(num_blocks):
                executor = parts.build_executor(num_blocks)
                socket.send(wire.encode(wire.Ready()))
            case wire.Step(plan) if executor is not None:
                result = executor.execute(plan)
                socket.send(wire.encode(wire.Done(plan.step_id, wire.checksum(raw, result))))
            case wire.Reset() if executor is not None:
                executor.reset()
            case wire.Stop():
                return
            case unexpected:
                raise RuntimeError(f"{type(unexpected).__name__} came too early")
