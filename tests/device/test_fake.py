"""The fake device is as unforgiving as the real one: each mistake that it is there for is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.executor.device.fake import FakeRuntime, HiddenWaitError, to_device, to_host
from engine.kernels.triton.activation import silu_and_mul


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


def on_device(values: list[float]) -> torch.Tensor:
    return to_device(torch.tensor(values))


def test_a_replay_reads_the_static_input_anew(runtime: FakeRuntime) -> None:
    static = on_device([1.0, 2.0])
    graph = runtime.capture(lambda: (static * 2).sum() + static)
    assert to_host(graph.output).isnan().all()  # a capture runs nothing
    graph.replay()
    assert to_host(graph.output).tolist() == [7.0, 8.0]
    static.copy_(on_device([10.0, 20.0]))
    graph.replay()
    assert to_host(graph.output).tolist() == [70.0, 80.0]


def test_an_input_that_was_not_copied_into_the_static_one_is_not_seen(runtime: FakeRuntime) -> None:
    inputs = {"x": on_device([1.0])}
    graph = runtime.capture(lambda: inputs["x"] + 1)
    inputs["x"] = on_device([5.0])
    graph.replay()
    assert to_host(graph.output).tolist() == [2.0]


def test_numbers_are_as_they_were_at_capture(runtime: FakeRuntime) -> None:
    factor, x = [3], on_device([1.0])
    graph = runtime.capture(lambda: x * factor[0])
    factor[0] = 4
    graph.replay()
    assert to_host(graph.output).tolist() == [3.0]


def test_in_place_work_and_views_are_replayed(runtime: FakeRuntime) -> None:
    x, table = on_device([1.0, 2.0, 3.0, 4.0]), to_device(torch.zeros(4))

    def work() -> torch.Tensor:
        table.view(2, 2)[1].copy_(x[:2])
        table.add_(1)
        return table[2:].clone()

    table_before = to_host(table).clone()
    graph = runtime.capture(work)
    table.copy_(to_device(table_before))
    graph.replay()
    assert to_host(table).tolist() == [1.0, 1.0, 2.0, 3.0]
    graph.replay()
    assert to_host(graph.output).tolist() == [2.0, 3.0]
    assert to_host(table).tolist() == [2.0, 2.0, 2.0, 3.0]


def test_another_graphs_replay_spoils_the_output(runtime: FakeRuntime) -> None:
    x = on_device([1.0])
    first, second = runtime.capture(lambda: x + 1), runtime.capture(lambda: x + 2)
    first.replay()
    second.replay()
    assert to_host(first.output).isnan().all()
    assert to_host(second.output).tolist() == [3.0]


def test_what_a_graph_reads_is_known(runtime: FakeRuntime) -> None:
    x, y = on_device([1.0]), on_device([2.0])
    graph = runtime.capture(lambda: (x + y) * 2)
    assert graph.inputs == {x.data_ptr(), y.data_ptr()}


def test_triton_kernels_are_replayed(runtime: FakeRuntime) -> None:
    x = on_device([[0.0, 1.0, 5.0, 7.0]])

    def work() -> torch.Tensor:
        out = torch.empty_like(x[:, :2])
        silu_and_mul(x + 0, out)
        return out

    graph = runtime.capture(work)
    x.copy_(on_device([[2.0, 4.0, 3.0, 1.0]]))
    graph.replay()
    expected = torch.nn.functional.silu(torch.tensor([[2.0, 4.0]])) * torch.tensor([[3.0, 1.0]])
    torch.testing.assert_close(to_host(graph.output), expected)


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "bool": lambda x: bool(x[0] > 0),
    "int": lambda x: int(x[0]),
    "index on the host": lambda x: x[torch.tensor([0])],
    "assignment by an index on the host": lambda x: x.__setitem__(torch.tensor([0]), 1.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_hidden_wait_is_an_error(name: str) -> None:
    with pytest.raises(HiddenWaitError):
        WAITS[name](on_device([1.0, 2.0]))


@pytest.mark.parametrize("work", [torch.nonzero, lambda x: x[x > 1]], ids=["nonzero", "mask"])
def test_a_size_that_depends_on_data_cannot_be_captured(
    runtime: FakeRuntime, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = on_device([1.0, 2.0])
    with pytest.raises(HiddenWaitError):
        runtime.capture(lambda: work(x))


def test_a_download_shows_poison_until_its_event(runtime: FakeRuntime) -> None:
    pinned, x = runtime.pinned(8).view(torch.int64), to_device(torch.tensor([42]))
    runtime.download(pinned, x)
    early = runtime.record_event()
    x.fill_(7)  # the copy is in front of it in the queue
    assert pinned.tolist() != [42]
    early.synchronize()
    assert pinned.tolist() == [42]


def test_pinned_memory_written_too_early(runtime: FakeRuntime) -> None:
    pinned, block = runtime.pinned(4), runtime.device_bytes(4)
    runtime.upload(block, pinned)
    pinned.fill_(1)
    with pytest.raises(HiddenWaitError, match="pinned memory was written"):
        runtime.record_event().synchronize()
