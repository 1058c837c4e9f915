"""From a configuration to an executor over several ranks: rank 0 here, each other in its own process."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.executor.factory import RankParts, load_rank
from engine.models.loader import describe_model
from engine.parallel import wire
from engine.parallel.executor import TensorParallelExecutor
from engine.parallel.group import RanksLostError
from engine.parallel.rank import connect
from engine.parallel.shard import Shard, check_divisible
from engine.parallel.workers import LOAD_TIMEOUT_S, TIMEOUT_S, Workers

SETUP_TIMEOUT_S = 300.0
"""Longest for connecting, sizing or allocating on all ranks."""


def start_ranks(
    config: EngineConfig, timeout_s: float = TIMEOUT_S
) -> tuple[TensorParallelExecutor, RankParts]:
    """Start the other ranks, load this one's part meanwhile, and bring all to the point where plans can run.

    Args:
        timeout_s: longest that one rank waits for another in a step.

    Raises:
        InvalidInputError: the model can't be divided so.
        ModelLoadError, EngineError: a rank did not come up; none is left behind.
    """
    size = config.tensor_parallel_size
    check_divisible(describe_model(config).config, size)
    workers = Workers(config, size, timeout_s)
    try:
        shard = Shard(0, size)
        parts = load_rank(config, shard)
        workers.receive(wire.Loaded, LOAD_TIMEOUT_S)
        workers.send(wire.encode(wire.Connect()))
        group = connect(workers.store, shard, parts.device, timeout_s)
        workers.on_end = group.abort
        parts.build_backend(group)
        own = parts.size_kv()
        num_blocks = min(own, *(sized.num_blocks for sized in workers.receive(wire.Sized, SETUP_TIMEOUT_S)))
        workers.send(wire.encode(wire.Allocate(num_blocks)))
        inner = parts.build_executor(num_blocks)
        workers.receive(wire.Ready, SETUP_TIMEOUT_S)
    except RanksLostError as error:
        cause = workers.explain(error)
        workers.stop()
        raise cause from error
    except BaseException:
        workers.stop()
        raise
    return TensorParallelExecutor(inner, workers), parts
