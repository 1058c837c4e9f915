"""The ranks of one model as they talk in a forward: sum and gather."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # torch leaves it out of its stubs

from engine.errors import EngineError


class RanksLostError(EngineError):
    """A collective did not come to its end: another rank is gone, or did not come in time."""


class RankGroup(Protocol):
    """Collectives of a forward. Every rank calls them in the same order with the same shapes."""

    rank: int
    size: int

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of every rank's ``x``; may be done in place. All ranks get the same bits."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's ``x`` side by side along the last dimension, in the order of ranks."""
        ...


class SoloGroup:
    """One rank: nothing to exchange."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x


SOLO = SoloGroup()


class CollectiveGroup:
    """A :class:`RankGroup` over torch.distributed: NCCL on GPUs, gloo on CPUs.

    The process group is an object of its own, not torch's default one: an engine inside somebody's process
    leaves that process's distributed state alone. Connecting waits for all ranks.

    Args:
        store: where the ranks find each other.
        device: of the tensors that are exchanged.
        timeout_s: longest wait for the others, in connecting and in one collective.

    Raises:
        RanksLostError: also from the collectives.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        with _lost_ranks():
            self._group = _process_group(store, rank, size, device, timedelta(seconds=timeout_s))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        with _lost_ranks():
            self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with _lost_ranks():
            self._group.allgather([parts], [x]).wait()
        return torch.cat(parts, dim=-1)

    def abort(self) -> None:
        """End collectives that wait for a rank that is gone; they raise then. From any thread."""
        self._group.abort()


def _process_group(store: Store, rank: int, size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    gloo = dist.ProcessGroupGloo
    gloo_options = gloo._Options()  # type: ignore[attr-defined]  # torch leaves it out of its stubs
    gloo_options._timeout = timeout
    # All ranks are on this host: nothing listens on a network.
    gloo_options._devices = [gloo.create_device(hostname="127.0.0.1")]
    return gloo(store, rank, size, gloo_options)


@contextmanager
def _lost_ranks() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RanksLostError(f"the other ranks did not answer: {first_line}") from error
