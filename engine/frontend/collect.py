"""Joining a request's deltas to its whole output."""

from __future__ import annotations

from dataclasses import replace

from engine.errors import EngineError
from engine.frontend.outputs import CompletionOutput, RequestOutput
from engine.frontend.processor import ProcessedRequest


class OutputCollector:
    """A sink (see :mod:`engine.frontend.output_processor`) that keeps everything of one request."""

    def __init__(self, request: ProcessedRequest) -> None:
        self._num_sequences = len(request.children)
        self._deltas: list[RequestOutput] = []
        self._error: Exception | None = None

    def add(self, item: RequestOutput | Exception) -> None:
        if isinstance(item, Exception):
            self._error = item
        else:
            self._deltas.append(item)

    @property
    def finished(self) -> bool:
        return self._error is not None or (bool(self._deltas) and self._deltas[-1].finished)

    def result(self) -> RequestOutput:
        """The whole output.

        Raises:
            EngineError: the engine died or refused the request.
        """
        if self._error is not None:
            raise self._error
        return merge_deltas(self._deltas, self._num_sequences)


def merge_deltas(deltas: list[RequestOutput], num_sequences: int) -> RequestOutput:
    """One output that holds all that ``deltas`` (at least one, in order) said.

    Raises:
        EngineError: the request failed.
    """
    last = deltas[-1]
    if last.error is not None:
        raise EngineError(last.error)
    parts: list[list[CompletionOutput]] = [[] for _ in range(num_sequences)]
    for delta in deltas:
        for part in delta.outputs:
            parts[part.index].append(part)
    prompt_logprobs = next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None)
    return replace(
        last,
        outputs=[_join(index, part) for index, part in enumerate(parts)],
        prompt_logprobs=prompt_logprobs,
    )


def _join(index: int, parts: list[CompletionOutput]) -> CompletionOutput:
    if not parts:
        return CompletionOutput(index=index, text="", token_ids=[])
    has_logprobs = any(part.logprobs is not None for part in parts)
    return CompletionOutput(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=[token for part in parts for token in part.token_ids],
        logprobs=[entry for part in parts for entry in part.logprobs or []] if has_logprobs else None,
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
        timings=parts[-1].timings,
    )
