"""Runs plans on a device without waiting for it: a step is queued by ``begin`` and its tokens are read by
``finish``, so that the host prepares the next step while the device works on this one.

A step in which some row needs the host's sampler (logprobs, masks, bias, penalties), or prompt logprobs,
waits inside ``begin``; it is the only wait there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.clock import Clock
from engine.executor.device.batch import DeviceBatch, DeviceTables, PackedStep
from engine.executor.device.graphs import DecodeGraphs, Forward
from engine.executor.device.inputs import (
    StepShape,
    device_forward_batch,
    staging_capacity,
    write_forward,
    write_sampling,
)
from engine.executor.device.runtime import DeviceRuntime, Event, Timer
from engine.executor.device.sampler import sample_on_device
from engine.executor.device.staging import Staging
from engine.executor.input_batch import InputBatch
from engine.executor.prompt_logprobs import PromptSlice
from engine.executor.torch_executor import TorchExecutor
from engine.messages import TokenLogprobs
from engine.models.backend import ModelBackend
from engine.plan import StepPlan, StepResult
from engine.sampling.rows import NO_LOGPROBS

STEPS_UNDER_WAY = 2
"""One runs, one is queued: asynchronous scheduling's depth."""


@dataclass(slots=True)
class QueuedStep:
    """A step on its way; ``names`` are those whose tokens will be in ``tokens`` (pinned) after ``done``."""

    plan: StepPlan
    result: StepResult
    names: Sequence[str] = ()
    tokens: npt.NDArray[np.int64] | None = None
    done: Event | None = None
    timer: Timer | None = None
    """Of the forward."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Sizes, and what is captured.

    ``capture_sizes``: padded batch sizes of decode graphs; none: every step is launched kernel by kernel.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    max_num_batched_tokens: int
    capture_sizes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class _SampleOrder:
    """Samples of a step: those that the device draws first, then those of the host's sampler."""

    names: list[str]
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Their requests' places in batch order."""
    num_on_device: int


class DeviceExecutor(TorchExecutor):
    """An :class:`engine.executor.base.PipelinedExecutor` over a backend whose forward only queues work.

    Args:
        backend: its KV cache is allocated here.
        num_kv_blocks: blocks, the null block included.
        forward: the backend's forward, or a compiled form of it.
    """

    def __init__(
        self,
        runtime: DeviceRuntime,
        backend: ModelBackend,
        num_kv_blocks: int,
        settings: DeviceSettings,
        forward: Forward | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._forward = forward or backend.forward
        max_blocks = -(-settings.max_model_len // settings.block_size)
        self._tables = DeviceTables(runtime, settings.max_num_seqs, max_blocks)
        largest = max(settings.capture_sizes, default=0)
        capacity = staging_capacity(
            settings.max_num_batched_tokens,
            settings.max_num_seqs,
            settings.max_model_len,
            settings.block_size,
            largest,
        )
        self._staging = Staging(runtime, capacity, STEPS_UNDER_WAY)
        self._token_slots = [
            runtime.pinned(settings.max_num_seqs * 8).view(torch.int64) for _ in range(STEPS_UNDER_WAY)
        ]
        super().__init__(
            backend, num_kv_blocks, settings.max_num_seqs, settings.max_model_len, settings.block_size, clock
        )
        self._graphs: DecodeGraphs | None = None
        if settings.capture_sizes:
            with torch.inference_mode():
                self._graphs = DecodeGraphs(
                    runtime,
                    self._staging,
                    self._tables,
                    self._forward,
                    settings.capture_sizes,
                    settings.max_model_len,
                    settings.block_size,
                )

    def _new_batch(self) -> InputBatch:
        self._device_batch = DeviceBatch(*self._sizes)
        return self._device_batch

    def execute(self, plan: StepPlan) -> StepResult:
        return self.finish(self.begin(plan))

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> QueuedStep:
        """Queue ``plan``. At most :data:`STEPS_UNDER_WAY` steps may be begun and not finished."""
        runtime = self._runtime
        runtime.bind_thread()
        with runtime.annotate("prepare"):
            self._apply(plan)
            step = QueuedStep(plan, StepResult(plan.step_id, {}))
            if not plan.num_scheduled_tokens:
                return step
            packed = self._device_batch.packed(plan)
            order = self._sample_order(plan, packed)
            parts = self._prompt_parts(plan) if self._prompt_logprobs else []
            wanted = (packed.ends[order.places] - 1).tolist() + [row for part in parts for row in part.rows]
            graph_size = None
            if self._graphs is not None and packed.max_query_len == 1:
                graph_size = self._graphs.size_for(packed.num_requests)
            device = self._send(packed, order, wanted, graph_size)
            step.result.t_prepare_ns = self._clock.now_ns()
        with runtime.annotate("forward"):
            step.timer = runtime.start_timer()
            logits = self._logits(packed, device, wanted, graph_size)
            step.timer.stop()
        with runtime.annotate("sample"):
            tokens = self._sample(step, logits, order, device)
            if parts:
                self._score_prompts(step, parts, logits[len(order.names) :])
            if tokens is not None:
                self._queue_tokens(step, tokens, order, device)
        return step

    def finish(self, step: QueuedStep) -> StepResult:
        """Wait for the tokens of ``step``. Steps are finished in the order in which they were begun."""
        result = step.result
        if step.done is not None and step.tokens is not None:
            with self._runtime.annotate("wait"):
                step.done.synchronize()
            if step.timer is not None:
                result.gpu_forward_ns = step.timer.read_ns()
            token_of = dict(zip(step.names, step.tokens[: len(step.names)].tolist(), strict=True))
            result.sampled_token_ids = {name: token_of[name] for name in step.plan.samples}
        if step.plan.num_scheduled_tokens:
            result.t_sample_ns = self._clock.now_ns()
        return result

    def ready(self, step: QueuedStep) -> bool:
        """Whether the tokens of ``step`` are there."""
        return step.done is None or step.done.query()

    def _sample_order(self, plan: StepPlan, packed: PackedStep) -> _SampleOrder:
        places = InputBatch.batch_positions(plan)
        rows = packed.rows[places]
        state = self._sampler.rows
        by_host = state.special[rows] | (state.num_logprobs[rows] != NO_LOGPROBS)
        order = np.argsort(by_host, kind="stable")
        names = list(plan.samples)
        return _SampleOrder(
            [names[i] for i in order], rows[order], places[order], len(order) - int(by_host.sum())
        )

    def _send(
        self, packed: PackedStep, order: _SampleOrder, wanted: Sequence[int], graph_size: int | None
    ) -> dict[str, torch.Tensor]:
        """Write all inputs of the step and queue the one copy; the fields on the device."""
        table_places, table_blocks = self._device_batch.take_updates()
        shape = StepShape(
            graph_size or packed.num_tokens,
            graph_size or packed.num_requests,
            len(wanted),
            len(order.names),
            len(table_places),
        )
        layout = shape.layout
        host = layout.on_host(self._staging.host())
        write_forward(host, packed, self._tables.padding_row)
        host["logits_indices"][:] = wanted
        write_sampling(host, self._sampler.rows, order.rows)
        host["table_places"][:] = table_places
        host["table_blocks"][:] = table_blocks
        self._staging.send(layout.num_bytes)
        device = layout.on_device(self._staging.block)
        if shape.num_updates:
            self._tables.update(device["table_places"], device["table_blocks"])
        return device

    def _logits(
        self,
        packed: PackedStep,
        device: dict[str, torch.Tensor],
        wanted: Sequence[int],
        graph_size: int | None,
    ) -> torch.Tensor:
        """Logits of the rows ``wanted``, float32 [R, V]."""
        if self._graphs is not None and graph_size is not None:
            logits = self._graphs.replay(graph_size)
            if list(wanted) == list(range(len(wanted))):  # as a rule everyone samples, in order
                return logits[: len(wanted)]
            return logits.index_select(0, device["logits_indices"])
        return self._forward(
            device_forward_batch(
                device,
                self._tables,
                device["logits_indices"],
                block_size=self._settings.block_size,
                max_query_len=packed.max_query_len,
                max_seq_len=packed.max_seq_len,
            )
        )

    def _sample(
        self, step: QueuedStep, logits: torch.Tensor, order: _SampleOrder, device: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """Tokens of all samples on the device, in the order of ``order``; None without samples."""
        count, on_device = len(order.names), order.num_on_device
        if not count:
            return None
        state = self._sampler.rows
        drawn: list[torch.Tensor] = []
        if on_device:
            rows = order.rows[:on_device]
            drawn.append(
                sample_on_device(
                    logits[:on_device],
                    device,
                    all_greedy=bool(state.greedy[rows].all()),
                    any_cut=bool(state.truncated[rows].any() or state.min_p[rows].any()),
                )
            )
            state.positions[rows] += 1
        if on_device < count:
            sampled = self._sampler.sample(
                self._runtime.waitable(logits[on_device:count]), order.rows[on_device:].tolist()
            )
            for name, logprobs in zip(order.names[on_device:], sampled.logprobs, strict=True):
                if logprobs is not None:
                    step.result.logprobs[name] = logprobs
            drawn.append(self._runtime.send_now(sampled.token_ids))
        return torch.cat(drawn) if len(drawn) > 1 else drawn[0]

    def _score_prompts(self, step: QueuedStep, parts: Sequence[PromptSlice], logits: torch.Tensor) -> None:
        begin = 0
        for part in parts:
            end = begin + len(part.target_ids)
            scores: list[TokenLogprobs] = []
            if end > begin:
                lines = self._runtime.waitable(logits[begin:end])
                scores = self._sampler.prompt_logprobs(lines, part.target_ids, part.num_logprobs)
            complete = self._prompt_logprobs.record(part, scores)
            if complete is not None:
                step.result.prompt_logprobs[part.request_id] = complete
            begin = end

    def _queue_tokens(
        self, step: QueuedStep, tokens: torch.Tensor, order: _SampleOrder, device: dict[str, torch.Tensor]
    ) -> None:
        """Make them inputs of the next step, and queue their copy to the host."""
        self._tables.newest_tokens.index_copy_(0, device["sample_rows"], tokens)
        slot = self._token_slots.pop(0)
        self._token_slots.append(slot)
        self._runtime.download(slot[: len(order.names)], tokens)
        step.names, step.tokens = order.names, slot.numpy()
        step.done = self._runtime.record_event()
