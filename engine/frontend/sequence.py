"""One sequence on its way out: tokens in, text and deltas out, stop strings found."""

from __future__ import annotations

import msgspec

from engine.frontend.detokenizer import IncrementalDetokenizer, TokenBytes
from engine.frontend.outputs import CompletionOutput, Logprob
from engine.frontend.stop import StopStrings
from engine.messages import EngineCoreOutput, FinishReason, RequestTimings, TokenLogprobs
from engine.sampling_params import SamplingParams


class SequenceOutput:
    """Turns one child's :class:`EngineCoreOutput` into :class:`CompletionOutput` deltas.

    Nothing in a delta is ever taken back, and the deltas join to what a caller gets who doesn't stream.
    Tokens behind a stop string are dropped, not counted. A stop *token* is counted; its text is left out
    unless ``include_stop_str_in_output``.

    Args:
        index: place among the ``n`` sequences of the request.
        stream_interval: tokens gathered before a delta is given out; the first goes out at once.
    """

    def __init__(
        self, index: int, params: SamplingParams, tokenizer: TokenBytes, stream_interval: int
    ) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.stopped_by_text = False
        """A stop string ended it: the core doesn't know and must be told."""
        self._params = params
        self._tokenizer = tokenizer
        self._interval = stream_interval
        self._detokenizer = (
            IncrementalDetokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
            if params.detokenize
            else None
        )
        self._stop = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._num_tokens = 0
        self._stop_reason: int | str | None = None
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[list[Logprob]] = []
        self._sent_any = False
        self._timings: RequestTimings | None = None
        self._last_token_ns: int | None = None
        """Of a token behind those that ``_timings`` knows."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def update(self, output: EngineCoreOutput, timestamp_ns: int | None = None) -> CompletionOutput | None:
        """Take the news of the step that ended at ``timestamp_ns``; the delta that is due, or None."""
        self._note_timings(output, timestamp_ns)
        last = len(output.new_token_ids) - 1
        for i, token_id in enumerate(output.new_token_ids):
            ends_here = i == last and output.finish_reason is FinishReason.STOP
            self._append(token_id, output.logprobs[i] if output.logprobs else None, ends_here)
            if self._stop.matched is not None:
                self._finish(FinishReason.STOP, self._stop.matched)
                self.stopped_by_text = output.finish_reason is None
                break
        if not self.finished and output.finish_reason is not None:
            self._flush_text()
            self._finish(output.finish_reason, output.stop_reason)
        return self._take()

    def end(self, reason: FinishReason) -> CompletionOutput | None:
        """Finish from outside (an abort): the last delta, with everything that was held back."""
        if self.finished:
            return None
        self._flush_text()
        self._finish(reason, None)
        return self._take()

    def _append(self, token_id: int, logprobs: TokenLogprobs | None, is_stop_token: bool) -> None:
        self._num_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(decode_logprobs(logprobs, self._tokenizer))
        if self._detokenizer is None or (is_stop_token and not self._params.include_stop_str_in_output):
            return
        piece = self._detokenizer.append(token_id)
        self._text.append(self._stop.append(piece, may_stop=self._num_tokens > self._params.min_tokens))

    def _flush_text(self) -> None:
        if self._detokenizer is not None:
            self._text.append(self._stop.append(self._detokenizer.finish(), may_stop=False))
            self._text.append(self._stop.finish())

    def _finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.finish_reason = reason
        self._stop_reason = stop_reason

    def _note_timings(self, output: EngineCoreOutput, timestamp_ns: int | None) -> None:
        """The core's own stamps where it sends them. Of a sequence that ends here, by a stop string or an
        abort, it sends those of the first token: the last token's is the step's.
        """
        if output.timings is not None:
            self._timings, self._last_token_ns = output.timings, None
        elif output.new_token_ids:
            self._last_token_ns = timestamp_ns

    def _final_timings(self) -> RequestTimings | None:
        if self._timings is None or self._last_token_ns is None:
            return self._timings
        return msgspec.structs.replace(self._timings, last_token_ns=self._last_token_ns)

    def _take(self) -> CompletionOutput | None:
        due = self.finished or (len(self._token_ids) >= (self._interval if self._sent_any else 1))
        if not due:
            return None
        delta = CompletionOutput(
            index=self.index,
            text="".join(self._text),
            token_ids=self._token_ids,
            logprobs=self._logprobs if self._params.logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            timings=self._final_timings() if self.finished else None,
        )
        self._text, self._token_ids, self._logprobs = [], [], []
        self._sent_any = True
        return delta


def decode_logprobs(entry: TokenLogprobs, tokenizer: TokenBytes) -> list[Logprob]:
    """The chosen token first (with its rank), then the best ones, ranked by their place."""
    decoded = []
    for place, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
        token_bytes = tokenizer.token_bytes(token_id)
        rank = place if place else entry.rank
        decoded.append(Logprob(token_id, logprob, rank, token_bytes.decode("utf-8", "replace"), token_bytes))
    return decoded
