"""Runs a plan on a model: persistent batch → backend's forward → sampler."""

from __future__ import annotations

from engine.clock import Clock, MonotonicClock
from engine.executor.input_batch import InputBatch
from engine.executor.prompt_logprobs import PromptLogprobs, PromptSlice
from engine.models.backend import ModelBackend
from engine.plan import StepPlan, StepResult
from engine.sampling.sampler import Sampler


class TorchExecutor:
    """An :class:`engine.executor.base.Executor` over any :class:`ModelBackend`.

    Args:
        backend: its KV cache is allocated here.
        num_kv_blocks: blocks, the null block included.
        max_num_seqs, max_model_len, block_size: size of the persistent batch.
        clock: stamps of the result.
    """

    def __init__(
        self,
        backend: ModelBackend,
        num_kv_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        clock: Clock | None = None,
    ) -> None:
        self._backend = backend
        self._num_kv_blocks = num_kv_blocks
        self._sizes = (max_num_seqs, max_model_len, block_size)
        self._clock = clock or MonotonicClock()
        backend.allocate_kv(num_kv_blocks)
        self.reset()

    @property
    def num_kv_blocks(self) -> int:
        return self._num_kv_blocks

    @property
    def backend(self) -> ModelBackend:
        """What runs the model."""
        return self._backend

    def reset(self) -> None:
        self._batch = self._new_batch()
        self._sampler = Sampler(self._backend.vocab_size, self._sizes[0])
        self._prompt_logprobs = PromptLogprobs()

    def _new_batch(self) -> InputBatch:
        return InputBatch(*self._sizes)

    def shutdown(self) -> None:
        """Nothing to release but memory, which goes with the object."""

    def execute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        result = StepResult(plan.step_id, {})
        if not plan.num_scheduled_tokens:
            return result
        parts = self._prompt_parts(plan) if self._prompt_logprobs else []
        batch = self._batch.build(plan)
        num_samples = len(plan.samples)
        if parts:
            rows = batch.logits_indices.tolist() + [row for part in parts for row in part.rows]
            batch.logits_indices = batch.logits_indices.new_tensor(rows)
        result.t_prepare_ns = self._clock.now_ns()

        logits = self._backend.forward(batch)
        result.t_forward_ns = self._clock.now_ns()

        begin = num_samples
        for part in parts:
            end = begin + len(part.target_ids)
            scores = (
                self._sampler.prompt_logprobs(logits[begin:end], part.target_ids, part.num_logprobs)
                if end > begin
                else []
            )
            complete = self._prompt_logprobs.record(part, scores)
            if complete is not None:
                result.prompt_logprobs[part.request_id] = complete
            begin = end
        if num_samples:
            sampled_rows = [self._batch.row(name) for name in plan.samples]
            sampled = self._sampler.sample(logits[:num_samples], sampled_rows)
            self._batch.append_tokens(sampled_rows, sampled.token_ids)
            result.sampled_token_ids = dict(zip(plan.samples, sampled.token_ids, strict=True))
            for name, logprobs in zip(plan.samples, sampled.logprobs, strict=True):
                if logprobs is not None:
                    result.logprobs[name] = logprobs
        result.t_sample_ns = self._clock.now_ns()
        return result

    def _apply(self, plan: StepPlan) -> None:
        """Bookkeeping of the plan: who left, who entered, which blocks came."""
        for request_id in plan.finished_request_ids:
            self._leave(request_id)
            self._prompt_logprobs.remove(request_id)
        for request_id in plan.preempted_request_ids:
            self._leave(request_id)
        for request in plan.new_requests:
            row = self._batch.add(request)
            prompt, output = (
                request.token_ids[: request.num_prompt_tokens],
                request.token_ids[request.num_prompt_tokens :],
            )
            self._sampler.add_row(row, request.params, prompt, output, request.eos_token_ids)
            self._prompt_logprobs.add(request)
        for request_id, block_ids in plan.new_block_ids.items():
            self._batch.append_blocks(request_id, block_ids)

    def _leave(self, request_id: str) -> None:
        row = self._batch.remove(request_id)
        if row is not None:
            self._sampler.remove_row(row)

    def _prompt_parts(self, plan: StepPlan) -> list[PromptSlice]:
        parts, first_row = [], 0
        for request_id, scheduled in plan.num_scheduled_tokens.items():
            part = self._prompt_logprobs.slice(
                request_id, plan.num_computed_tokens[request_id], scheduled, first_row
            )
            if part is not None:
                parts.append(part)
            first_row += scheduled
        return parts
