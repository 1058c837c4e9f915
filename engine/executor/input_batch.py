"""The persistent batch: what is known of each running request, in preallocated arrays.

A request keeps its row from entry to exit, so nothing is ever moved: a step gathers the rows it needs. Each
array is numpy, and building the inputs is a fixed number of numpy calls; Python's work grows with requests
only by dict look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.models.backend import ForwardBatch
from engine.plan import NewRequest, StepPlan


class InputBatch:
    """Rows 0 … ``max_num_seqs`` − 1.

    ``token_ids[r, :num_tokens[r]]`` are the known tokens of the request at row r; ``block_table[r,
    :num_blocks[r]]`` its KV blocks, the rest of the line is 0 (the null block).
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.max_model_len = max_model_len
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int64)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.block_table = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row_of

    def row(self, request_id: str) -> int:
        return self._row_of[request_id]

    def add(self, request: NewRequest) -> int:
        """Enter a request; returns its row."""
        if request.request_id in self._row_of:
            raise ValueError(f"request {request.request_id} is in the batch already")
        if not self._free_rows:
            raise ValueError(
                f"request {request.request_id}: all {len(self.num_tokens)} rows (max_num_seqs) are taken"
            )
        row = self._free_rows.pop()
        self._row_of[request.request_id] = row
        count = len(request.token_ids)
        self.token_ids[row, :count] = request.token_ids
        self.num_tokens[row] = count
        self.num_blocks[row] = 0
        self.append_blocks(request.request_id, request.block_ids)
        return row

    def append_blocks(self, request_id: str, block_ids: Sequence[int]) -> None:
        row = self._row_of[request_id]
        first = self.num_blocks[row]
        self.block_table[row, first : first + len(block_ids)] = block_ids
        self.num_blocks[row] = first + len(block_ids)

    def remove(self, request_id: str) -> int | None:
        """Drop a request; returns its row, None when it has none (never entered, or left by preemption)."""
        row = self._row_of.pop(request_id, None)
        if row is None:
            return None
        self.block_table[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = self.num_tokens[row] = 0
        self._free_rows.append(row)
        return row

    def append_tokens(self, rows: Sequence[int], token_ids: Sequence[int]) -> None:
        """Note one sampled token per row; beyond ``max_model_len`` it can't be an input and isn't kept."""
        index = np.asarray(rows, dtype=np.int64)
        at = self.num_tokens[index]
        fits = at < self.max_model_len
        self.token_ids[index[fits], at[fits]] = np.asarray(token_ids, dtype=np.int64)[fits]
        self.num_tokens[index] = at + fits

    def build(self, plan: StepPlan, logits_indices: Sequence[int] | None = None) -> ForwardBatch:
        """Inputs of ``plan``'s forward, packed in batch order.

        Args:
            plan: at least one token is scheduled; its bookkeeping was applied.
            logits_indices: packed rows whose logits are wanted; default: the last row of every request in
                ``plan.samples``, in that order.
        """
        scheduled = plan.num_scheduled_tokens
        rows = np.fromiter((self._row_of[name] for name in scheduled), dtype=np.int64, count=len(scheduled))
        lengths = np.fromiter(scheduled.values(), dtype=np.int64, count=len(scheduled))
        computed_of = plan.num_computed_tokens
        computed = np.fromiter(
            (computed_of[name] for name in scheduled), dtype=np.int64, count=len(scheduled)
        )

        ends = np.cumsum(lengths)
        starts = ends - lengths
        total = int(ends[-1])
        token_rows = np.repeat(rows, lengths)
        positions = np.arange(total) + np.repeat(computed - starts, lengths)
        seq_lens = computed + lengths
        slots = self.block_table[token_rows, positions // self.block_size].astype(np.int64)
        slots = slots * self.block_size + positions % self.block_size
        max_seq_len = int(seq_lens.max())
        max_blocks = -(-max_seq_len // self.block_size)
        if logits_indices is None:
            logits_indices = (ends[self.batch_positions(plan)] - 1).tolist()
        return ForwardBatch(
            input_ids=torch.from_numpy(self.token_ids[token_rows, positions]),
            positions=torch.from_numpy(positions),
            query_start_loc=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
            seq_lens=torch.from_numpy(seq_lens.astype(np.int32)),
            block_table=torch.from_numpy(self.block_table[rows, :max_blocks]),
            slot_mapping=torch.from_numpy(slots),
            logits_indices=torch.tensor(logits_indices, dtype=torch.int64),
            max_query_len=int(lengths.max()),
            max_seq_len=max_seq_len,
        )

    @staticmethod
    def batch_positions(plan: StepPlan) -> np.ndarray:
        """Index in batch order of each request in ``plan.samples``, int64."""
        if len(plan.samples) == len(plan.num_scheduled_tokens):  # pure decode: everyone samples
            return np.arange(len(plan.samples))
        index_of = {name: index for index, name in enumerate(plan.num_scheduled_tokens)}
        return np.fromiter((index_of[name] for name in plan.samples), dtype=np.int64, count=len(plan.samples))
