"""Beam search in the front end, as in vLLM: each turn asks the engine for one token and the best logprobs
of every beam.

The prefix cache makes the repeated prompts cheap. Ranking: cumulative logprob divided by (length of
prompt and output) to the power of ``length_penalty``; a finishing eos does not count into the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.errors import InvalidInputError
from engine.frontend.detokenizer import IncrementalDetokenizer
from engine.frontend.outputs import CompletionOutput, Logprob, RequestOutput
from engine.frontend.processor import InputProcessor, Prompt
from engine.frontend.validate import resolve_max_tokens, validate_prompt
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams

MAX_BEAM_WIDTH = 64


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """``n`` of the best are returned (default: all ``beam_width``); ``max_tokens=None`` means all the
    room there is.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    """Leave the text of a finishing eos in the output."""
    skip_special_tokens: bool = True
    n: int | None = None
    logprobs: bool = False
    """Report each token's logprob."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A sequence under construction: its output so far."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    cumulative: float = 0.0
    finish_reason: FinishReason | None = None


class BeamSearch:
    """One search, without I/O: run :attr:`prompts` with :attr:`step_params`, give the outputs to
    :meth:`advance`, until :attr:`done`.

    Raises:
        InvalidInputError: bad parameters or prompt.
    """

    def __init__(self, processor: InputProcessor, prompt: Prompt, params: BeamSearchParams) -> None:
        _check(params)
        self._processor = processor
        self._params = params
        self._prompt = prompt
        self._prompt_ids = processor.tokenize(prompt)
        validate_prompt(self._prompt_ids, processor.bounds)
        wanted = SamplingParams(max_tokens=params.max_tokens)
        resolved = resolve_max_tokens(wanted, len(self._prompt_ids), processor.bounds)
        self._turns_left = resolved.max_tokens or 0
        self._eos_ids = frozenset(() if params.ignore_eos else processor.eos_token_ids)
        self._beams = [Beam()]
        self._complete: list[Beam] = []
        self.step_params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=min(2 * params.beam_width, processor.bounds.vocab_size),
            detokenize=False,
        )

    @property
    def done(self) -> bool:
        return self._turns_left == 0 or not self._beams

    @property
    def prompts(self) -> list[list[int]]:
        """What to run now, one entry a beam."""
        return [[*self._prompt_ids, *beam.token_ids] for beam in self._beams]

    def advance(self, answers: Sequence[RequestOutput]) -> None:
        """Take one whole output per entry of :attr:`prompts`, in that order."""
        candidates: list[Beam] = []
        for beam, answer in zip(self._beams, answers, strict=True):
            for entry in _best(answer):
                ends = entry.token_id in self._eos_ids
                grown = Beam(
                    (*beam.token_ids, entry.token_id),
                    (*beam.logprobs, entry),
                    beam.cumulative + entry.logprob,
                    FinishReason.STOP if ends else None,
                )
                (self._complete if ends else candidates).append(grown)
        # sort is stable: equal scores keep the order of beams and of their candidates
        candidates.sort(key=self._score, reverse=True)
        self._beams = candidates[: self._params.beam_width]
        self._turns_left -= 1

    def result(self, request_id: str) -> RequestOutput:
        """The best sequences, best first; ``cumulative_logprob_<i>`` and ``score_<i>`` in ``metrics``."""
        ranked = sorted([*self._complete, *self._beams], key=self._score, reverse=True)
        best = ranked[: self._params.n or self._params.beam_width]
        metrics: dict[str, float] = {}
        for index, beam in enumerate(best):
            metrics[f"cumulative_logprob_{index}"] = beam.cumulative
            metrics[f"score_{index}"] = self._score(beam)
        return RequestOutput(
            request_id=request_id,
            prompt=self._prompt if isinstance(self._prompt, str) else None,
            prompt_token_ids=self._prompt_ids,
            outputs=[self._completion(index, beam) for index, beam in enumerate(best)],
            finished=True,
            metrics=metrics,
        )

    def _score(self, beam: Beam) -> float:
        length = len(self._prompt_ids) + len(beam.token_ids) - (beam.finish_reason is FinishReason.STOP)
        return beam.cumulative / math.pow(length, self._params.length_penalty)

    def _completion(self, index: int, beam: Beam) -> CompletionOutput:
        params = self._params
        detokenizer = IncrementalDetokenizer(
            self._processor.tokenizer, skip_special_tokens=params.skip_special_tokens
        )
        shown = beam.token_ids
        if beam.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output:
            shown = shown[:-1]
        return CompletionOutput(
            index=index,
            text="".join(map(detokenizer.append, shown)) + detokenizer.finish(),
            token_ids=list(beam.token_ids),
            logprobs=[[entry] for entry in beam.logprobs] if params.logprobs else None,
            finish_reason=beam.finish_reason or FinishReason.LENGTH,
        )


def _best(answer: RequestOutput) -> list[Logprob]:
    """The 2 · beam_width best tokens behind one beam (the sampled one, listed first, is not wanted)."""
    logprobs = answer.outputs[0].logprobs if answer.outputs else None
    return logprobs[0][1:] if logprobs else []


def _check(params: BeamSearchParams) -> None:
    width = params.beam_width
    if type(width) is not int or not 1 <= width <= MAX_BEAM_WIDTH:
        raise InvalidInputError("beam_width", width, f"an integer from 1 to {MAX_BEAM_WIDTH}")
    if params.n is not None and (type(params.n) is not int or not 1 <= params.n <= width):
        raise InvalidInputError("n", params.n, f"an integer from 1 to beam_width ({width})")
    penalty = params.length_penalty
    if not isinstance(penalty, int | float) or isinstance(penalty, bool) or not -10.0 <= penalty <= 10.0:
        raise InvalidInputError("length_penalty", penalty, "a number from -10 to 10")
    if params.max_tokens is not None and (type(params.max_tokens) is not int or params.max_tokens < 1):
        raise InvalidInputError("max_tokens", params.max_tokens, "an integer from 1")
