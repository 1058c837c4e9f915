"""A whole answer from its deltas."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.messages import FinishReason
from engine.server.generation import GenerationRequest, generate
from engine.server.state import ServerState
from engine.server.usage import Usage


@dataclass(slots=True)
class _Sequence:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[list[Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, delta: CompletionOutput) -> None:
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

    def completion(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(self.texts),
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


@dataclass(slots=True)
class Answer:
    """Everything one prompt got."""

    prompt: str | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: Sequence[list[Logprob] | None] | None = None
    usage: Usage = field(default_factory=Usage)
    _sequences: dict[int, _Sequence] = field(default_factory=dict)

    def add(self, output: RequestOutput) -> None:
        self.usage.add(0, output)
        self.prompt = output.prompt
        self.prompt_token_ids = output.prompt_token_ids
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for delta in output.outputs:
            self._sequences.setdefault(delta.index, _Sequence()).add(delta)

    @property
    def completions(self) -> list[CompletionOutput]:
        """In the order of their index."""
        return [self._sequences[index].completion(index) for index in sorted(self._sequences)]


async def collect(state: ServerState, request: GenerationRequest) -> list[Answer]:
    """One answer per prompt, in the prompts' order. Raises: as :func:`generate`."""
    answers = [Answer() for _ in request.prompts]
    async with aclosing(generate(state, request)) as outputs:
        async for prompt_index, output in outputs:
            answers[prompt_index].add(output)
    return answers
