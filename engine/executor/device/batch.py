"""The persistent batch with its device part: block tables and newest tokens live on the device.

A step sends what is new: a few words a request, and only the block ids that came since the last step. The
newest token of a request never comes to the host before it is an input again: an input that the host does not
know is sent as −(row + 1), and the device puts in that row's newest token. So a step can be queued while
the one before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.executor.device.runtime import DeviceRuntime
from engine.executor.input_batch import InputBatch
from engine.plan import StepPlan


class DeviceTables:
    """What the device keeps of the rows, at fixed addresses: graphs read it.

    One row more than ``max_num_seqs``, for padding: its blocks are null.
    """

    def __init__(self, runtime: DeviceRuntime, max_num_seqs: int, max_blocks: int) -> None:
        rows = max_num_seqs + 1
        self.padding_row = max_num_seqs
        self.blocks = runtime.device_bytes(rows * max_blocks * 4).view(torch.int32).view(rows, max_blocks)
        self.newest_tokens = runtime.device_bytes(rows * 8).view(torch.int64)

    def update(self, places: torch.Tensor, block_ids: torch.Tensor) -> None:
        """Put ``block_ids`` (int32 [U]) at ``places`` (int64 [U], of the flattened table)."""
        self.blocks.view(-1).index_copy_(0, places, block_ids)


class DeviceBatch(InputBatch):
    """The host's part, and what has to be sent.

    ``num_tokens`` counts the tokens that the host knows: those that a request entered with.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        super().__init__(max_num_seqs, max_model_len, block_size)
        self._width = self.block_table.shape[1]
        self._updates: dict[int, int] = {}

    def append_blocks(self, request_id: str, block_ids: Sequence[int]) -> None:
        first = int(self.num_blocks[self._row_of[request_id]])
        super().append_blocks(request_id, block_ids)
        start = self._row_of[request_id] * self._width + first
        self._updates.update(enumerate(block_ids, start))

    def take_updates(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Places in the flattened device table, and the block ids to put there, since the last call."""
        updates, self._updates = self._updates, {}
        count = len(updates)
        return (
            np.fromiter(updates.keys(), dtype=np.int64, count=count),
            np.fromiter(updates.values(), dtype=np.int32, count=count),
        )

    def packed(self, plan: StepPlan) -> PackedStep:
        """Inputs of ``plan``'s forward on the host, in batch order."""
        scheduled = plan.num_scheduled_tokens
        count = len(scheduled)
        rows = np.fromiter((self._row_of[name] for name in scheduled), dtype=np.int64, count=count)
        lengths = np.fromiter(scheduled.values(), dtype=np.int64, count=count)
        computed = np.fromiter(
            (plan.num_computed_tokens[name] for name in scheduled), dtype=np.int64, count=count
        )
        ends = np.cumsum(lengths)
        token_rows = np.repeat(rows, lengths)
        positions = np.arange(ends[-1]) + np.repeat(computed - (ends - lengths), lengths)
        slots = self.block_table[token_rows, positions // self.block_size].astype(np.int64)
        known = positions < self.num_tokens[token_rows]
        tokens = np.where(known, self.token_ids[token_rows, positions], -1 - token_rows)
        return PackedStep(
            rows=rows,
            input_ids=tokens,
            positions=positions,
            slot_mapping=slots * self.block_size + positions % self.block_size,
            ends=ends,
            seq_lens=computed + lengths,
            max_query_len=int(lengths.max()),
        )


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Arrays of one forward: [B] by request, [T] by token."""

    rows: npt.NDArray[np.int64]
    input_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int64]
    max_query_len: int

    @property
    def num_requests(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def max_seq_len(self) -> int:
        return int(self.seq_lens.max())
