"""From the core's news of sequences to the news of requests that callers wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.frontend.detokenizer import TokenBytes
from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.frontend.processor import ProcessedRequest
from engine.frontend.sequence import SequenceOutput, decode_logprobs
from engine.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason

Sink = Callable[[RequestOutput | Exception], None]
"""Takes every delta of one request in order; after one that is ``finished``, or an exception, nothing
follows.
"""


class LiveRequest:
    """A request in flight: its sequences by core id, and where its news goes."""

    def __init__(
        self, request: ProcessedRequest, sink: Sink, tokenizer: TokenBytes, stream_interval: int
    ) -> None:
        self.external_id = request.external_id
        self.sequences = {
            child.request_id: SequenceOutput(index, child.params, tokenizer, stream_interval)
            for index, child in enumerate(request.children)
        }
        self.sink = sink
        self.num_cached_tokens = 0
        self._request = request
        self._prompt_logprobs: list[list[Logprob] | None] | None = None

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences.values())

    def unfinished_ids(self) -> list[str]:
        return [core_id for core_id, sequence in self.sequences.items() if not sequence.finished]

    def note(self, output: EngineCoreOutput, tokenizer: TokenBytes) -> None:
        """Keep what concerns the prompt until the next delta."""
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else decode_logprobs(entry, tokenizer)
                for entry in output.prompt_logprobs
            ]

    def emit(self, outputs: list[CompletionOutput], error: str | None = None) -> None:
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        self.sink(
            RequestOutput(
                request_id=self.external_id,
                prompt=self._request.prompt,
                prompt_token_ids=self._request.prompt_token_ids,
                outputs=outputs,
                finished=self.finished,
                num_cached_tokens=self.num_cached_tokens,
                prompt_logprobs=prompt_logprobs,
                error=error,
            )
        )


class OutputProcessor:
    """All requests in flight. Single-threaded; news of sequences that are no longer here is ignored."""

    def __init__(self, tokenizer: TokenBytes, stream_interval: int = 1) -> None:
        self._tokenizer = tokenizer
        self._interval = stream_interval
        self._by_core_id: dict[str, LiveRequest] = {}

    @property
    def num_sequences(self) -> int:
        """Unfinished sequences."""
        return len(self._by_core_id)

    def add(self, request: ProcessedRequest, sink: Sink) -> LiveRequest:
        """Register a request; do it before the core can answer."""
        live = LiveRequest(request, sink, self._tokenizer, self._interval)
        self._by_core_id.update(dict.fromkeys(live.sequences, live))
        return live

    def process(self, outputs: EngineCoreOutputs) -> list[str]:
        """Hand out deltas; return the core ids that the core must abort (a stop string or a failed
        sibling ended them).
        """
        to_abort: list[str] = []
        for output in outputs.outputs:
            live = self._by_core_id.get(output.request_id)
            if live is None:
                continue
            sequence = live.sequences[output.request_id]
            live.note(output, self._tokenizer)
            delta = sequence.update(output, outputs.timestamp_ns)
            if output.error is not None:
                to_abort += self.remove(live)
                for sibling in live.sequences.values():
                    sibling.end(FinishReason.ERROR)
                live.emit([] if delta is None else [delta], output.error)
                continue
            if sequence.finished:
                del self._by_core_id[output.request_id]
            if sequence.stopped_by_text:
                to_abort.append(output.request_id)
            if delta is not None:
                live.emit([delta])
        return to_abort

    def remove(self, live: LiveRequest) -> list[str]:
        """Forget a request whose caller has gone; core ids of what is still running, to be aborted."""
        return [core_id for core_id in live.sequences if self._by_core_id.pop(core_id, None) is not None]

    def abort(self, external_ids: Iterable[str]) -> list[str]:
        """End every request that bears one of these ids with ``abort``; core ids to be aborted. Unknown
        ids are ignored.
        """
        wanted = set(external_ids)
        lives = {id(live): live for live in self._by_core_id.values() if live.external_id in wanted}
        core_ids: list[str] = []
        for live in lives.values():
            core_ids += self.remove(live)
            deltas = [sequence.end(FinishReason.ABORT) for sequence in live.sequences.values()]
            live.emit([delta for delta in deltas if delta is not None])
        return core_ids

    def fail_all(self, error: Exception) -> None:
        """The engine died: every caller in flight gets ``error``."""
        lives = {id(live): live for live in self._by_core_id.values()}
        self._by_core_id.clear()
        for live in lives.values():
            live.sink(error)
