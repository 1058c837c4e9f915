"""One block, one copy: what is written under a name on the host is read under it on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.executor.device.batch import DeviceBatch, PackedStep
from engine.executor.device.fake import FakeRuntime, HiddenWaitError, to_host
from engine.executor.device.inputs import StepShape, forward_fields, staging_capacity, write_forward
from engine.executor.device.staging import ALIGNMENT, Field, Layout, Staging
from tests.executor.plans import new, plan

FIELDS = [
    Field("a", "i8", 3),
    Field("b", "i4", 5),
    Field("c", "u1", 3),
    Field("none", "f8", 0),
    Field("d", "f4", 1),
]


def test_fields_arrive_as_they_were_written() -> None:
    runtime = FakeRuntime()
    layout = Layout(FIELDS)
    staging = Staging(runtime, layout.num_bytes, 2)
    host = layout.on_host(staging.host())
    host["a"][:], host["b"][:], host["c"][:], host["d"][:] = [1, -2, 3], range(5), [7, 8, 9], 0.5
    staging.send(layout.num_bytes)
    device = {name: to_host(value) for name, value in layout.on_device(staging.block).items()}
    assert device["a"].tolist() == [1, -2, 3]
    assert device["b"].tolist() == [0, 1, 2, 3, 4]
    assert device["c"].tolist() == [7, 8, 9]
    assert device["d"].tolist() == [0.5]
    assert device["none"].shape == (0,)
    assert runtime.num_uploads == 1
    assert all(
        value.data_ptr() % ALIGNMENT == staging.block.data_ptr() % ALIGNMENT for value in device.values()
    )


def test_a_slot_is_written_again_only_after_its_copy_came() -> None:
    runtime = FakeRuntime()
    staging = Staging(runtime, 16, 2)
    for value in range(6):
        staging.host()[:] = value
        staging.send(16)
    runtime.record_event().synchronize()
    assert to_host(staging.block).tolist() == [5] * 16


def test_a_ring_that_does_not_wait_is_caught() -> None:
    runtime = FakeRuntime()
    staging = Staging(runtime, 16, 1)
    staging.host()[:] = 1
    staging.send(16)
    staging._slots[0].copied = None  # the planted bug
    staging.host()[:] = 2
    with pytest.raises(HiddenWaitError):
        runtime.record_event().synchronize()


def test_padding_reads_and_writes_nothing() -> None:
    packed = PackedStep(
        rows=np.array([2, 0]),
        input_ids=np.array([5, -1]),
        positions=np.array([9, 3]),
        slot_mapping=np.array([17, 33]),
        ends=np.array([1, 2]),
        seq_lens=np.array([10, 4]),
        max_query_len=1,
    )
    layout = Layout(forward_fields(4, 4))
    host = layout.on_host(np.full(layout.num_bytes, 0xFB, dtype=np.uint8))
    write_forward(host, packed, padding_row=8)
    assert {name: values.tolist() for name, values in host.items()} == {
        "input_ids": [5, -1, 0, 0],
        "positions": [9, 3, 0, 0],
        "slot_mapping": [17, 33, -1, -1],
        "query_start_loc": [0, 1, 2, 3, 4],
        "seq_lens": [10, 4, 0, 0],
        "rows": [2, 0, 8, 8],
    }


def test_a_graph_finds_the_forward_by_its_size_alone() -> None:
    """Whatever else a step sends comes behind."""
    alone = Layout(forward_fields(8, 8))
    for shape in (StepShape(8, 8, 3, 3, 0), StepShape(8, 8, 8, 8, 77)):
        assert shape.layout.offsets[: len(alone.fields)] == alone.offsets


def test_the_largest_step_fits() -> None:
    capacity = staging_capacity(64, 4, 96, 4, 8)
    assert StepShape(64, 4, 68, 4, 96).layout.num_bytes <= capacity
    assert StepShape(8, 8, 12, 4, 96).layout.num_bytes <= capacity


def test_unknown_tokens_are_sent_as_their_row_and_blocks_once() -> None:
    batch = DeviceBatch(4, 32, 4)
    first = plan(0, {"a": (0, 5), "b": (0, 2)}, ["a", "b"])
    batch.add(new("a", [11, 12, 13, 14, 15], [3, 9]))
    batch.add(new("b", [21, 22], [7]))
    packed = batch.packed(first)
    assert packed.input_ids.tolist() == [11, 12, 13, 14, 15, 21, 22]
    assert packed.slot_mapping.tolist() == [12, 13, 14, 15, 36, 28, 29]
    places, blocks = batch.take_updates()
    assert dict(zip(places.tolist(), blocks.tolist(), strict=True)) == {0: 3, 1: 9, 8: 7}
    assert batch.take_updates()[0].size == 0
    second = batch.packed(plan(1, {"b": (2, 1), "a": (5, 1)}, ["b", "a"]))
    assert second.input_ids.tolist() == [-2, -1]
    assert second.max_query_len == 1
    assert second.seq_lens.tolist() == [3, 6]
    batch.append_blocks("b", [30])
    assert [values.tolist() for values in batch.take_updates()] == [[9], [30]]


def test_a_row_taken_over_sends_the_newcomers_blocks() -> None:
    batch = DeviceBatch(1, 16, 4)
    batch.add(new("a", [1], [3]))
    batch.remove("a")
    batch.add(new("b", [1], [5]))
    assert [values.tolist() for values in batch.take_updates()] == [[0], [5]]
    assert torch.from_numpy(batch.block_table)[0].tolist() == [5, 0, 0, 0]
