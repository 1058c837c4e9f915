"""The device executor on the fake device: the same tokens, no waits, padding that touches nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.executor.base import PipelinedExecutor
from engine.executor.device import inputs
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.device.fake import FakeRuntime, to_host
from engine.executor.device.graphs import default_capture_sizes
from engine.executor.device.staging import Staging
from engine.executor.torch_executor import TorchExecutor
from engine.kernels.triton.backend import TritonBackend
from engine.models.dense import ReferenceBackend
from engine.plan import StepPlan
from engine.sampling_params import SamplingParams
from tests.device.graph_safe_backend import GraphSafeBackend
from tests.device.machine import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    Machine,
    machine,
    plain_executor,
    with_graphs,
    without_graphs,
)
from tests.differential.backends import BACKENDS, Arithmetic, tiny_weights
from tests.differential.runner import ExecutorFactory, Tally, run_scenario
from tests.differential.scenario import MAX_MODEL_LEN
from tests.executor.plans import new, plan

SAMPLED = SamplingParams(temperature=0.9, seed=4)
CUT = SamplingParams(temperature=0.9, seed=4, top_p=0.9)
SEEDS = (307, 311, 313, 318, 321, 304)
"""Scenarios with preemptions, prefix hits or both."""
TRITON_SEEDS = (15, 17)
"""Small ones with preemptions, prefix hits and an abort."""
PENALISED = SamplingParams(temperature=0.0, repetition_penalty=1.4, logprobs=1)


def graph_safe() -> Arithmetic:
    weights = tiny_weights(torch.float64)

    def backend(block_size: int) -> GraphSafeBackend:
        return GraphSafeBackend(weights, MAX_MODEL_LEN, block_size)

    return Arithmetic("graph safe", backend, backend)


@pytest.mark.parametrize("new_executor", [with_graphs, without_graphs])
def test_no_token_differs_from_the_solo_run(new_executor: ExecutorFactory) -> None:
    arithmetic, tally = graph_safe(), Tally()
    for seed in SEEDS:
        run_scenario(seed, arithmetic, tally, new_executor)
    assert tally.mismatches == []
    assert tally.preemptions == 11
    assert tally.prefix_hit_tokens > 50


@pytest.mark.parametrize("new_executor", [with_graphs, without_graphs])
def test_no_token_differs_on_triton_kernels(new_executor: ExecutorFactory) -> None:
    arithmetic, tally = BACKENDS["triton"](), Tally()
    for seed in TRITON_SEEDS:
        run_scenario(seed, arithmetic, tally, new_executor)
    assert tally.mismatches == []
    assert tally.preemptions > 0
    assert tally.prefix_hit_tokens > 0


def test_the_graph_safe_backend_is_the_reference() -> None:
    arithmetic, tally = graph_safe(), Tally()
    for seed in range(6):
        run_scenario(seed, arithmetic, tally)
    assert tally.mismatches == []


def life(params: Sequence[SamplingParams]) -> list[StepPlan]:
    """Requests of 3, 5 and 1 tokens come in, decode together, one leaves, another one comes, and so on."""
    names = ["a", "b", "c"]
    prompts = {"a": [5, 6, 7], "b": [9, 8, 7, 6, 5], "c": [40]}
    blocks = {"a": [3, 4, 5, 6], "b": [10, 11, 12, 13], "c": [20, 21, 22, 23]}
    requests = [
        new(name, prompts[name], blocks[name], params=p) for name, p in zip(names, params, strict=True)
    ]
    steps = [plan(0, {name: (0, len(prompts[name])) for name in names}, names, new_requests=requests)]
    done = {name: len(prompts[name]) for name in names}
    for step in range(1, 5):
        steps.append(plan(step, {name: (done[name], 1) for name in names}, names))
        done = {name: count + 1 for name, count in done.items()}
    # b leaves, d takes its row and comes in with a chunk that does not sample yet
    steps.append(
        plan(5, {"a": (done["a"], 1), "c": (done["c"], 1), "d": (0, 2)}, ["a", "c"],
             new_requests=[new("d", [61, 62, 63], [30, 31])], finished=["b"])
    )  # fmt: skip
    steps.append(plan(6, {"d": (2, 1), "a": (done["a"] + 1, 1)}, ["d", "a"]))
    steps.append(plan(7, {"c": (done["c"] + 1, 1), "a": (done["a"] + 2, 1), "d": (3, 1)}, ["c", "a", "d"]))
    steps.append(plan(8, {}, finished=["a", "c", "d"]))
    return steps


def tokens_of(executor: TorchExecutor, steps: Sequence[StepPlan]) -> list[dict[str, int]]:
    return [executor.execute(step).sampled_token_ids for step in steps]


def queued_tokens(executor: PipelinedExecutor, steps: Sequence[StepPlan]) -> list[dict[str, int]]:
    """As asynchronous scheduling does it: a step is begun before the one before it is finished."""
    tokens, begun = [], executor.begin(steps[0])
    for step in steps[1:]:
        following = executor.begin(step)
        tokens.append(executor.finish(begun).sampled_token_ids)
        begun = following
    return [*tokens, executor.finish(begun).sampled_token_ids]


@pytest.mark.parametrize("sizes", [(), (1, 2, 4), (4,)])
@pytest.mark.parametrize("params", [[SAMPLED] * 3, [CUT, PENALISED, SamplingParams(temperature=0.0)]])
def test_queued_steps_give_the_tokens_of_waiting_ones(
    sizes: tuple[int, ...], params: list[SamplingParams]
) -> None:
    expected = tokens_of(plain_executor(), life(params))
    assert queued_tokens(machine(sizes).executor, life(params)) == expected
    assert [list(step) for step in tokens_of(machine(sizes).executor, life(params))] == [
        list(step) for step in expected
    ]


def test_a_step_is_one_copy_each_way_and_a_replay() -> None:
    m = machine((4,))
    steps = life([SAMPLED] * 3)
    m.executor.execute(steps[0])
    before = (m.runtime.num_uploads, m.runtime.num_downloads)
    (graph,) = m.runtime.graphs
    for step in steps[1:5]:
        m.executor.execute(step)
    assert (m.runtime.num_uploads - before[0], m.runtime.num_downloads - before[1]) == (4, 4)
    assert graph.replays == 4
    assert m.runtime.ranges[-4:] == ["prepare", "forward", "sample", "wait"]


def test_a_graph_reads_nothing_but_what_stays() -> None:
    m = machine((1, 4))
    weights = m.backend._weights
    stays = [m.executor._staging.block, m.executor._tables.blocks, m.executor._tables.newest_tokens]
    stays += [*m.backend._key_caches, *m.backend._value_caches, m.backend._cos, m.backend._sin]
    stays += [weights.embed, weights.final_norm, weights.lm_head]
    for layer in weights.layers:
        stays += [value for name in layer.__slots__ if (value := getattr(layer, name)) is not None]
    assert m.executor._graphs is not None
    stays.append(m.executor._graphs._all_rows)
    known = {tensor.untyped_storage().data_ptr() for tensor in stays}
    for graph in m.runtime.graphs:
        assert graph.inputs <= known


def test_graphs_outlive_a_reset() -> None:
    m = machine((1, 2, 4))
    expected = tokens_of(m.executor, life([SAMPLED] * 3))
    m.executor.reset()
    assert tokens_of(m.executor, life([SAMPLED] * 3)) == expected


def changed_slots(m: Machine, steps: Sequence[StepPlan]) -> set[int]:
    """Slots that the last of ``steps`` wrote."""
    for step in steps[:-1]:
        m.executor.execute(step)
    before = m.kv()
    m.executor.execute(steps[-1])
    differs = (m.kv() != before).flatten(2).any(-1).any(0)
    return set(torch.nonzero(differs).flatten().tolist())


def test_padding_rows_write_no_slot() -> None:
    """Three requests in a graph of four; a, b and c are at positions 3, 5 and 1."""
    m = machine((4,))
    m.fill_kv(0.25)
    own = {3 * BLOCK_SIZE + 3, 11 * BLOCK_SIZE + 1, 20 * BLOCK_SIZE + 1}
    assert changed_slots(m, life([SAMPLED] * 3)[:2]) == own


def test_a_padding_row_that_writes_a_real_slot_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PADDING_SLOT", 30 * BLOCK_SIZE)
    m = machine((4,))
    m.fill_kv(0.25)
    assert 30 * BLOCK_SIZE in changed_slots(m, life([SAMPLED] * 3)[:2])


@pytest.mark.parametrize("forgotten", ["positions", "seq_lens", "slot_mapping", "rows", "noise"])
def test_an_input_that_does_not_reach_the_static_buffer_would_be_seen(
    monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """Without the copy of one field tokens are others, or an index is out of range: these tests can fail."""
    expected = tokens_of(plain_executor(), life([SAMPLED] * 3))
    m = machine((4,))
    original = Staging.send

    def send(staging: Staging, num_bytes: int) -> None:
        layout = inputs.StepShape(4, 4, 3, 3, 0).layout
        stale = {n: to_host(v).clone() for n, v in layout.on_device(staging.block).items()}[forgotten]
        original(staging, num_bytes)
        if num_bytes == layout.num_bytes:
            to_host(layout.on_device(staging.block)[forgotten]).copy_(stale)

    monkeypatch.setattr(Staging, "send", send)
    try:
        tokens = tokens_of(m.executor, life([SAMPLED] * 3))
    except IndexError:  # stale rows of another layout: out of the table
        return
    assert tokens != expected


def test_default_capture_sizes_are_vllms() -> None:
    assert default_capture_sizes(1) == [1]
    assert default_capture_sizes(6) == [1, 2, 4, 6]
    assert default_capture_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert default_capture_sizes(300)[-4:] == [256, 272, 288, 300]
    assert default_capture_sizes(2048)[-1] == 512


def test_batches_above_the_largest_graph_are_launched() -> None:
    m = machine((1, 2))
    tokens = tokens_of(m.executor, life([SAMPLED] * 3))
    assert tokens == tokens_of(plain_executor(), life([SAMPLED] * 3))
    # steps 1 to 4, 5 and 7 have three requests; step 6 has two
    assert [graph.replays for graph in m.runtime.graphs] == [1, 0]


def test_prompt_logprobs_through_graphs_and_chunks() -> None:
    params = SamplingParams(temperature=0.0, prompt_logprobs=1)
    steps = [
        plan(0, {"a": (0, 2)}, new_requests=[new("a", [5, 6, 7, 8], [3], params=params)]),
        plan(1, {"a": (2, 1)}),
        plan(2, {"a": (3, 1)}, ["a"]),
    ]
    results = [
        [executor.execute(step) for step in steps] for executor in (machine().executor, plain_executor())
    ]
    assert [r.prompt_logprobs for r in results[0]] == [r.prompt_logprobs for r in results[1]]
    assert [len(scores) for scores in results[0][2].prompt_logprobs.values()] == [4]


def test_the_triton_backend_in_graphs() -> None:
    """Kernels in the interpreter, captured and replayed: the tokens of the reference."""
    weights = tiny_weights(torch.float32)
    runtime = FakeRuntime()
    backend = TritonBackend(weights, MAX_MODEL_LEN, BLOCK_SIZE, device="cpu", max_num_seqs=4)
    settings = DeviceSettings(4, MAX_MODEL_LEN, BLOCK_SIZE, 64, (4,))
    executor = DeviceExecutor(runtime, backend, NUM_BLOCKS, settings)
    for cache in (*backend.key_caches, *backend.value_caches):
        cache.fill_(float("nan"))
    reference = TorchExecutor(
        ReferenceBackend(weights, MAX_MODEL_LEN, BLOCK_SIZE), NUM_BLOCKS, 4, MAX_MODEL_LEN, BLOCK_SIZE
    )
    greedy = [SamplingParams(temperature=0.0)] * 3
    assert queued_tokens(executor, life(greedy)) == tokens_of(reference, life(greedy))
    assert runtime.graphs[0].replays == 6
