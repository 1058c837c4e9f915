"""Offline use: prompts in, finished outputs back, the engine in this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar, cast

from engine.config import EngineConfig
from engine.core.client import InprocCoreClient
from engine.errors import EngineDeadError, EngineError, InvalidInputError
from engine.executor.info import ExecutorInfo
from engine.frontend.beam_search import BeamSearch, BeamSearchParams
from engine.frontend.collect import OutputCollector
from engine.frontend.output_processor import LiveRequest, OutputProcessor
from engine.frontend.outputs import RequestOutput
from engine.frontend.processor import InputProcessor, Message, ProcessedRequest, Prompt
from engine.frontend.tokenizer import load_tokenizer
from engine.messages import SchedulerStats
from engine.sampling_params import SamplingParams

T = TypeVar("T")


class LLM:
    """``LLM("smollm2-135m").generate(["Hello"], SamplingParams(temperature=0))``.

    Args:
        model: what :attr:`EngineConfig.model` takes, or a whole configuration.
        fields: further fields of :class:`EngineConfig` (not together with a configuration).

    Raises:
        ModelLoadError, InvalidInputError: the model or a setting is at fault.
    """

    def __init__(self, model: str | EngineConfig | None = None, **fields: Any) -> None:
        if isinstance(model, EngineConfig):
            if fields:
                raise InvalidInputError(next(iter(fields)), "given", "nothing beside a whole EngineConfig")
            config = model
        else:
            config = EngineConfig.create(**({} if model is None else {"model": model}), **fields)
        self._init(config, InprocCoreClient(config), load_tokenizer(config))

    @classmethod
    def from_parts(cls, config: EngineConfig, client: InprocCoreClient, tokenizer: Any) -> LLM:
        """An engine from parts that were made elsewhere (another executor, another tokenizer)."""
        llm = cls.__new__(cls)
        llm._init(config, client, tokenizer)
        return llm

    def _init(self, config: EngineConfig, client: InprocCoreClient, tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._client = client
        self._processor = InputProcessor(config, client.info, tokenizer)
        self._outputs = OutputProcessor(tokenizer)
        self._next_request = 0

    @property
    def info(self) -> ExecutorInfo:
        """Settings in force."""
        return self._client.info

    @property
    def stats(self) -> SchedulerStats:
        return self._client.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Generate for all prompts, batched as the scheduler sees fit; results in the order of the prompts.

        Args:
            prompts: one prompt (text or token ids) or several.
            params: for all, or one each; default ``SamplingParams()``.
            progress: show a progress bar on stderr.

        Raises:
            InvalidInputError: a prompt or parameter is refused; nothing was generated then.
        """
        batch = _as_batch(prompts)
        each_params = _spread("params", params if params is not None else SamplingParams(), len(batch))
        each_priority = _spread("priority", priority, len(batch))
        requests = [
            self._processor.process(
                prompt, one_params, self._new_id(), priority=one_priority, cache_salt=cache_salt
            )
            for prompt, one_params, one_priority in zip(batch, each_params, each_priority, strict=True)
        ]
        return self._run(requests, progress=progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several; otherwise as :meth:`generate`."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if is_one else messages)
        prompts = [self._processor.render_chat(one, **template_options) for one in conversations]
        return self.generate(prompts, params, progress=progress)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[RequestOutput]:
        """The best sequences of each prompt, see :class:`engine.frontend.beam_search.BeamSearch`.

        Raises:
            InvalidInputError: bad parameters or prompt.
        """

        searches = [BeamSearch(self._processor, prompt, params) for prompt in _as_batch(prompts)]
        while active := [search for search in searches if not search.done]:
            requests = [
                self._processor.process(token_ids, search.step_params, self._new_id(), limit_logprobs=False)
                for search in active
                for token_ids in search.prompts
            ]
            answers = iter(self._run(requests))
            for search in active:
                search.advance(list(islice(answers, len(search.prompts))))
        return [search.result(self._new_id()) for search in searches]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self._client.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release threads and memory. May be called twice."""
        self._client.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _new_id(self) -> str:
        self._next_request += 1
        return str(self._next_request - 1)

    def _run(self, requests: Sequence[ProcessedRequest], *, progress: bool = False) -> list[RequestOutput]:
        """Step the core until all ``requests`` are finished; whatever happens, none of them stays behind."""
        collectors = [OutputCollector(request) for request in requests]
        live: list[LiveRequest] = []
        try:
            for request, collector in zip(requests, collectors, strict=True):
                live.append(self._outputs.add(request, collector.add))
                for child in request.children:
                    self._client.add(child)
            with _progress_bar(len(requests), progress) as advance:
                finished = 0
                # has_work also keeps the loop going until the executor knows who has left
                while self._client.has_work():
                    if to_abort := self._outputs.process(self._client.step()):
                        self._client.abort(to_abort)
                    if progress:
                        now_finished = sum(collector.finished for collector in collectors)
                        advance(now_finished - finished)
                        finished = now_finished
        finally:
            left = [core_id for request in live for core_id in self._outputs.remove(request)]
            if left:
                with suppress(EngineDeadError):  # the step failed: the first error says why
                    self._client.abort(left)
        for collector in collectors:
            if not collector.finished:
                raise EngineError("the engine has no work left, but a request is unfinished")
        return [collector.result() for collector in collectors]


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several? A list of integers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InvalidInputError("prompts", prompts, "texts or lists of token ids")
    if prompts and all(isinstance(part, int) for part in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _spread(field: str, value: T | Sequence[T], count: int) -> list[T]:
    """``value`` for each of ``count`` prompts, unless it is a list of just so many."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise InvalidInputError(
            field, f"{len(value)} entries", f"one, or as many as there are prompts ({count})"
        )
    return list(value)


@contextmanager
def _progress_bar(total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    """A function that is told how many more requests have finished."""
    if not enabled:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("generate"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("generate", total=total)
        yield lambda count: bar.advance(task, count)
