"""Inputs built from the persistent batch, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor.input_batch import InputBatch
from tests.executor.plans import new, plan


def test_a_mixed_step_by_hand() -> None:
    batch = InputBatch(max_num_seqs=4, max_model_len=16, block_size=4)
    batch.add(new("a", [10, 11, 12, 13, 14, 15], [3, 1]))
    batch.add(new("b", [20, 21], [7]))
    inputs = batch.build(plan(0, {"b": (1, 1), "a": (2, 4)}, ["b", "a"]))
    assert inputs.input_ids.tolist() == [21, 12, 13, 14, 15]
    assert inputs.positions.tolist() == [1, 2, 3, 4, 5]
    assert inputs.query_start_loc.tolist() == [0, 1, 5]
    assert inputs.seq_lens.tolist() == [2, 6]
    assert inputs.block_table.tolist() == [[7, 0], [3, 1]]
    assert inputs.slot_mapping.tolist() == [29, 14, 15, 4, 5]
    assert inputs.logits_indices.tolist() == [0, 4]
    assert (inputs.max_query_len, inputs.max_seq_len) == (4, 6)
    assert inputs.input_ids.dtype == inputs.positions.dtype == inputs.slot_mapping.dtype == torch.int64
    assert inputs.query_start_loc.dtype == inputs.seq_lens.dtype == inputs.block_table.dtype == torch.int32


def test_logits_only_of_those_that_sample() -> None:
    batch = InputBatch(4, 16, 4)
    batch.add(new("a", [1, 2, 3, 4], [1]))
    batch.add(new("b", [5], [2]))
    batch.add(new("c", [6, 7], [3]))
    step = plan(0, {"a": (0, 2), "b": (0, 1), "c": (0, 2)}, ["b", "c"])
    assert batch.build(step).logits_indices.tolist() == [2, 4]
    assert batch.build(plan(1, {"a": (0, 2)}, [])).logits_indices.tolist() == []


def test_rows_are_reused_and_leave_nothing_behind() -> None:
    batch = InputBatch(2, 16, 4)
    first = batch.add(new("a", list(range(1, 13)), [9, 8, 7]))
    batch.add(new("b", [5], [2]))
    with pytest.raises(ValueError, match="all 2 rows"):
        batch.add(new("c", [1], [1]))
    assert batch.remove("a") == first
    assert batch.remove("a") is None
    assert batch.add(new("c", [6], [4])) == first
    assert "a" not in batch
    assert len(batch) == 2
    assert batch.block_table[first].tolist() == [4, 0, 0, 0]
    with pytest.raises(ValueError, match="in the batch already"):
        batch.add(new("c", [1], [1]))


def test_a_token_beyond_the_limit_is_dropped() -> None:
    batch = InputBatch(2, 4, 4)
    rows = [batch.add(new("a", [1, 2, 3, 4], [1])), batch.add(new("b", [1, 2], [2]))]
    batch.append_tokens(rows, [9, 8])
    assert batch.num_tokens[rows].tolist() == [4, 3]
    assert batch.token_ids[rows[1]].tolist() == [1, 2, 8, 0]


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], int, int]]]:
    """Block size, and per request: tokens, computed, scheduled."""
    block_size = draw(st.integers(1, 7))
    requests = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(0, 99), min_size=1, max_size=20))
        computed = draw(st.integers(0, len(tokens) - 1))
        requests.append((tokens, computed, draw(st.integers(1, len(tokens) - computed))))
    return block_size, requests


@given(steps(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_inputs_equal_a_plain_loop(
    case: tuple[int, list[tuple[list[int], int, int]]], random: object
) -> None:
    block_size, requests = case
    batch = InputBatch(8, 20, block_size)
    free = list(range(1, 200))
    random.shuffle(free)  # type: ignore[attr-defined]
    order = list(range(len(requests)))
    random.shuffle(order)  # type: ignore[attr-defined]
    blocks = {}
    for index in order:  # rows differ from batch order
        tokens = requests[index][0]
        blocks[index] = [free.pop() for _ in range(-(-len(tokens) // block_size))]
        batch.add(new(str(index), tokens, blocks[index]))
    scheduled = {str(index): (computed, count) for index, (_, computed, count) in enumerate(requests)}
    samples = [
        str(i) for i, (tokens, computed, count) in enumerate(requests) if computed + count == len(tokens)
    ]
    inputs = batch.build(plan(0, scheduled, samples))

    ids, positions, slots, starts, wanted = [], [], [], [0], []
    for index, (tokens, computed, count) in enumerate(requests):
        for position in range(computed, computed + count):
            ids.append(tokens[position])
            positions.append(position)
            slots.append(blocks[index][position // block_size] * block_size + position % block_size)
        starts.append(len(ids))
        if str(index) in samples:
            wanted.append(len(ids) - 1)
        used = -(-(computed + count) // block_size)
        assert inputs.block_table[index, :used].tolist() == blocks[index][:used]
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert inputs.slot_mapping.tolist() == slots
    assert inputs.query_start_loc.tolist() == starts
    assert inputs.seq_lens.tolist() == [computed + count for _, computed, count in requests]
    assert inputs.logits_indices.tolist() == wanted
    assert len(np.unique(slots)) == len(slots)
