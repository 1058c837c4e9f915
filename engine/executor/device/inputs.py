"""A step's inputs: what goes into the staging block, and how the device sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from engine.executor.device.batch import DeviceTables, PackedStep
from engine.executor.device.staging import Field, Layout
from engine.models.backend import ForwardBatch
from engine.sampling.noise import uniforms
from engine.sampling.rows import RowStates

PADDING_SLOT = -1
"""Written by no kernel."""


def forward_fields(num_tokens: int, num_requests: int) -> list[Field]:
    """Inputs of a forward. They come first in a layout, so that a graph finds them by its size alone."""
    return [
        Field("input_ids", "i8", num_tokens),
        Field("positions", "i8", num_tokens),
        Field("slot_mapping", "i8", num_tokens),
        Field("query_start_loc", "i4", num_requests + 1),
        Field("seq_lens", "i4", num_requests),
        Field("rows", "i8", num_requests),
    ]


@dataclass(frozen=True)
class StepShape:
    """Lengths of everything that a step sends.

    ``num_tokens`` and ``num_requests`` with padding; ``num_logits`` ≥ ``num_samples`` (prompt logprobs).
    """

    num_tokens: int
    num_requests: int
    num_logits: int
    num_samples: int
    num_updates: int

    @cached_property
    def layout(self) -> Layout:
        samples = self.num_samples
        return Layout(
            [
                *forward_fields(self.num_tokens, self.num_requests),
                Field("logits_indices", "i8", self.num_logits),
                Field("sample_rows", "i8", samples),
                Field("noise", "f8", samples),
                Field("temperature", "f4", samples),
                Field("top_k", "i4", samples),
                Field("top_p", "f4", samples),
                Field("min_p", "f4", samples),
                Field("greedy", "u1", samples),
                Field("table_places", "i8", self.num_updates),
                Field("table_blocks", "i4", self.num_updates),
            ]
        )


def write_forward(host: dict[str, npt.NDArray[np.generic]], packed: PackedStep, padding_row: int) -> None:
    """Fill the forward's fields; what is longer than ``packed`` gets padding that reads and writes nothing:
    no slot, an empty context, the null block.
    """
    tokens, requests = packed.num_tokens, packed.num_requests
    _padded(host["input_ids"], packed.input_ids, 0)
    _padded(host["positions"], packed.positions, 0)
    _padded(host["slot_mapping"], packed.slot_mapping, PADDING_SLOT)
    _padded(host["seq_lens"], packed.seq_lens, 0)
    _padded(host["rows"], packed.rows, padding_row)
    starts = host["query_start_loc"]
    starts[0] = 0
    starts[1 : requests + 1] = packed.ends
    starts[requests + 1 :] = np.arange(tokens + 1, tokens + len(starts) - requests)  # one token each


def _padded(to: npt.NDArray[np.generic], values: npt.NDArray[np.generic], padding: int) -> None:
    to[: len(values)] = values
    to[len(values) :] = padding


def write_sampling(
    host: dict[str, npt.NDArray[np.generic]], state: RowStates, rows: npt.NDArray[np.int64]
) -> None:
    """Fill the sampler's fields from the columns of ``rows``, in the order of ``rows``."""
    host["sample_rows"][:] = rows
    host["noise"][:] = uniforms(state.seed_keys[rows], state.positions[rows])
    for name in ("temperature", "top_k", "top_p", "min_p", "greedy"):
        host[name][:] = getattr(state, name)[rows]


def device_forward_batch(
    device: dict[str, torch.Tensor],
    tables: DeviceTables,
    logits_indices: torch.Tensor,
    *,
    block_size: int,
    max_query_len: int,
    max_seq_len: int,
) -> ForwardBatch:
    """The forward's inputs on the device; queues the look-ups of newest tokens and of block tables."""
    sent = device["input_ids"]
    newest = tables.newest_tokens.index_select(0, (-1 - sent).clamp_min(0))
    width = -(-max_seq_len // block_size)
    return ForwardBatch(
        input_ids=torch.where(sent < 0, newest, sent),
        positions=device["positions"],
        query_start_loc=device["query_start_loc"],
        seq_lens=device["seq_lens"],
        block_table=tables.blocks[:, :width].index_select(0, device["rows"]),
        slot_mapping=device["slot_mapping"],
        logits_indices=logits_indices,
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
    )


def staging_capacity(
    max_num_tokens: int, max_num_seqs: int, max_model_len: int, block_size: int, max_padded: int
) -> int:
    """Bytes that the largest step needs: every request new, every token's logits wanted."""
    tokens = max(max_num_tokens, max_padded)
    requests = max(max_num_seqs, max_padded)
    updates = max_num_seqs * -(-max_model_len // block_size)
    return StepShape(tokens, requests, tokens + requests, requests, updates).layout.num_bytes
