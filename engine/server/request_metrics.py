"""One prompt's life as the metrics see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.frontend.outputs import CompletionOutput, RequestOutput
from engine.messages import FinishReason, RequestTimings

if TYPE_CHECKING:
    from engine.server.metrics import ServerMetrics

NS = 1e-9


@dataclass(slots=True)
class _Sequence:
    num_tokens: int = 0
    first_ns: int = 0
    last_ns: int = 0
    finished: bool = False


class RequestObserver:
    """Fed with every output of one prompt; closed exactly once, whatever the end was."""

    __slots__ = ("_arrival_ns", "_max_tokens", "_metrics", "_n", "_prefilled", "_sequences")

    def __init__(self, metrics: ServerMetrics, n: int, max_tokens: int | None, arrival_ns: int) -> None:
        self._metrics = metrics
        self._n = n
        self._max_tokens = max_tokens
        self._arrival_ns = arrival_ns
        self._prefilled = False
        self._sequences: dict[int, _Sequence] = {}

    def on_output(self, output: RequestOutput, now_ns: int) -> None:
        """Count ``output``, which reached the server at ``now_ns``."""
        if not self._prefilled:
            self._prefilled = True
            self._on_prefill(len(output.prompt_token_ids), output.num_cached_tokens)
        for completion in output.outputs:
            sequence = self._sequences.setdefault(completion.index, _Sequence())
            if completion.token_ids:
                self._on_tokens(sequence, len(completion.token_ids), now_ns)
            if completion.finish_reason is not None:
                self._on_finish(sequence, completion, now_ns)

    def close(self, unfinished: FinishReason | None) -> None:
        """The request is over. Sequences that had not finished count as ``unfinished``; None: it was
        refused, count nothing.
        """
        if unfinished is None:
            return
        metrics = self._metrics
        finished = sum(sequence.finished for sequence in self._sequences.values())
        metrics.request_success[unfinished].inc(self._n - finished)
        longest = max((sequence.num_tokens for sequence in self._sequences.values()), default=0)
        metrics.request_max_num_generation_tokens.observe(longest)

    def _on_prefill(self, prompt_tokens: int, cached_tokens: int) -> None:
        metrics = self._metrics
        computed = prompt_tokens - cached_tokens
        metrics.prompt_tokens.inc(prompt_tokens)
        metrics.prompt_tokens_cached.inc(cached_tokens)
        metrics.prompt_tokens_computed.inc(computed)
        metrics.prompt_tokens_hit.inc(cached_tokens)
        metrics.request_prompt_tokens.observe(prompt_tokens)
        metrics.request_prefill_kv_computed_tokens.observe(computed)
        metrics.request_params_n.observe(self._n)
        if self._max_tokens is not None:
            metrics.request_params_max_tokens.observe(self._max_tokens)

    def _on_tokens(self, sequence: _Sequence, count: int, now_ns: int) -> None:
        metrics = self._metrics
        metrics.generation_tokens.inc(count)
        if sequence.num_tokens == 0:
            sequence.first_ns = now_ns
            metrics.time_to_first_token.observe((now_ns - self._arrival_ns) * NS)
        else:
            each = (now_ns - sequence.last_ns) * NS / count
            for _ in range(count):
                metrics.inter_token_latency.observe(each)
        sequence.num_tokens += count
        sequence.last_ns = now_ns

    def _on_finish(self, sequence: _Sequence, completion: CompletionOutput, now_ns: int) -> None:
        metrics = self._metrics
        sequence.finished = True
        if completion.finish_reason is not None:
            metrics.request_success[completion.finish_reason].inc()
        metrics.e2e_latency.observe((now_ns - self._arrival_ns) * NS)
        metrics.request_generation_tokens.observe(sequence.num_tokens)
        if sequence.num_tokens > 1:
            decode_s = (sequence.last_ns - sequence.first_ns) * NS
            metrics.time_per_output_token.observe(decode_s / (sequence.num_tokens - 1))
        if completion.timings is not None:
            self._on_timings(completion.timings)

    def _on_timings(self, timings: RequestTimings) -> None:
        metrics = self._metrics
        scheduled, first, last = timings.scheduled_ns, timings.first_token_ns, timings.last_token_ns
        if scheduled is None:
            return
        metrics.queue_time.observe((scheduled - timings.queued_ns) * NS)
        if first is None or last is None:
            return
        metrics.prefill_time.observe((first - scheduled) * NS)
        metrics.decode_time.observe((last - first) * NS)
        metrics.inference_time.observe((last - scheduled) * NS)
