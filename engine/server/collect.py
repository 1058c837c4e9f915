"""A whole answer from its deltas."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.messages import FinishReason
from engine.server.generation import Generation
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


@dataclass(slots=True)
class Answer:
    """Everything one prompt got."""

    prompt: str | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: Sequence[list[Logprob] | None] | None = None
    completions: list[CompletionOutput] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def start(self, output: RequestOutput) -> None:
        self.prompt = output.prompt
        self.prompt_token_ids = output.prompt_token_ids


async def collect(generation: Generation) -> list[Answer]:
    """One answer per prompt, in the prompts' order; the completions of each in the order of their index."""
    answers = [Answer() for _ in generation.prompts]
    sequences = [[_Sequence() for _ in range(generation.params.n)] for _ in generation.prompts]
    async with aclosing(generation.outputs()) as outputs:
        async for prompt_index, output in outputs:
            answer = answers[prompt_index]
            answer.usage.add(prompt_index, output)
            if not answer.prompt_token_ids:
                answer.start(output)
            if output.prompt_logprobs is not None:
                answer.prompt_logprobs = output.prompt_logprobs
            for delta in output.outputs:
                sequences[prompt_index][delta.index].add(delta)
    for answer, parts in zip(answers, sequences, strict=True):
        answer.completions = [
            CompletionOutput(
                index=index,
                text="".join(part.texts),
                token_ids=part.token_ids,
                logprobs=part.logprobs,
                finish_reason=part.finish_reason,
                stop_reason=part.stop_reason,
            )
            for index, part in enumerate(parts)
        ]
    return answers
