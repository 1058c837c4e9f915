"""The front end of a server: any number of requests at the same time on one event loop, the core in its
own process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.core.client import AsyncCoreClient, ProcessCoreClient
from engine.errors import EngineDeadError, QueueFullError
from engine.frontend.beam_search import BeamSearch, BeamSearchParams
from engine.frontend.collect import merge_deltas
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.outputs import RequestOutput
from engine.frontend.processor import InputProcessor, Message, ProcessedRequest, Prompt
from engine.frontend.tokenizer import Tokenizer, load_tokenizer
from engine.frontend.validate import RequestBounds
from engine.messages import EngineCoreOutputs, SchedulerStats
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

LONG_TEXT = 20_000
"""Characters above which a prompt (bad words included) is tokenised on a thread, so that no stream waits."""

StartClient = Callable[[EngineConfig], Awaitable[AsyncCoreClient]]
StepListener = Callable[[EngineCoreOutputs], None]


class AsyncLLM:
    """Requests in, streams of deltas out. Belongs to the event loop that it was started in.

    Leaving a stream early (``aclose``, cancellation, an exception in the consumer's ``async with``)
    aborts the request in the core. When the core dies every stream raises :class:`EngineDeadError`, and
    so does every later call.
    """

    def __init__(self, config: EngineConfig, client: AsyncCoreClient, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.info: dict[str, Any] = msgspec.to_builtins(client.info)
        """Settings in force, see :class:`engine.executor.info.ExecutorInfo`."""
        self.dead_error: EngineDeadError | None = None
        self._client = client
        self._processor = InputProcessor(config, client.info, tokenizer)
        self._outputs = OutputProcessor(tokenizer, config.stream_interval)
        self._stats = client.initial_stats
        self._step_listeners: list[StepListener] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._reader = asyncio.create_task(self._read_outputs(), name="engine outputs")

    @classmethod
    async def start(
        cls, config: EngineConfig, start_client: StartClient = ProcessCoreClient.start
    ) -> AsyncLLM:
        """Load tokenizer and model (in the core's process), at the same time.

        Raises:
            ModelLoadError, InvalidInputError: the model or a setting is at fault.
            EngineDeadError: the core's process ended while it started.
        """
        loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, config))
        try:
            client = await start_client(config)
        except BaseException:
            loading.cancel()
            raise
        try:
            return cls(config, client, await loading)
        except BaseException:
            await client.shutdown()
            raise

    @property
    def is_dead(self) -> bool:
        return self.dead_error is not None

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's state after the last step."""
        return self._stats

    @property
    def max_model_len(self) -> int:
        """Prompt plus output tokens of one request, as far as the model goes."""
        return int(self.info["max_model_len"])

    @property
    def max_request_tokens(self) -> int:
        """Prompt plus output tokens of one request, as far as model and KV pool go."""
        return self.bounds.max_request_tokens

    @property
    def bounds(self) -> RequestBounds:
        """What one request may ask for."""
        return self._processor.bounds

    def add_step_listener(self, listener: StepListener) -> None:
        """Call ``listener`` with every step's outputs, before they are handed out."""
        self._step_listeners.append(listener)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Deltas of one request, the last one ``finished``. Nothing happens before the first is asked for.

        Args:
            prompt: text, or token ids.
            request_id: the caller's name for it; need not be unique.
            priority: lower runs first with the ``priority`` policy.
            cache_salt: the prefix cache is shared only with requests of the same salt.

        Raises:
            InvalidInputError: refused at the edge.
            QueueFullError: ``max_waiting_requests`` are waiting.
            EngineDeadError: the core died or was shut down.
        """
        self._require_alive()
        request = await self._process(prompt, params, request_id, priority, cache_salt)
        self._admit()
        async with aclosing(self._stream(request)) as stream:
            async for output in stream:
                yield output

    async def abort(self, request_id: str) -> None:
        """End every request of that id; their streams get a last delta with ``finish_reason`` abort."""
        if core_ids := self._outputs.abort([request_id]):
            self._client.abort(core_ids)

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, request_id: str, *, cache_salt: str | None = None
    ) -> RequestOutput:
        """The best sequences of one prompt, see :class:`engine.frontend.beam_search.BeamSearch`.

        Raises: as :meth:`generate`.
        """
        self._require_alive()
        self._admit()
        search = BeamSearch(self._processor, prompt, params)

        async def expand(token_ids: list[int]) -> RequestOutput:
            request = self._processor.process(
                token_ids, search.step_params, request_id, cache_salt=cache_salt, limit_logprobs=False
            )
            async with aclosing(self._stream(request)) as stream:
                deltas = [delta async for delta in stream]
            return merge_deltas(deltas, 1)

        while not search.done:
            try:
                async with asyncio.TaskGroup() as group:
                    beams = [group.create_task(expand(token_ids)) for token_ids in search.prompts]
            except ExceptionGroup as failures:  # one beam's failure is the request's
                raise failures.exceptions[0] from None
            search.advance([beam.result() for beam in beams])
        return search.result(request_id)

    async def _stream(self, request: ProcessedRequest) -> AsyncGenerator[RequestOutput, None]:
        """Submit; give out deltas; abort what is left when closed."""
        self._require_alive()
        news: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()
        live = self._outputs.add(request, news.put_nowait)
        self._idle.clear()
        try:
            for child in request.children:
                self._client.add(child)
            while True:
                item = await news.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            if core_ids := self._outputs.remove(live):
                self._client.abort(core_ids)
            if self._outputs.num_sequences == 0:
                self._idle.set()

    def render_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Token ids of a conversation, see :meth:`InputProcessor.render_chat`."""
        return self._processor.render_chat(messages, **options)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False when running requests hold blocks."""
        self._require_alive()
        return await self._client.reset_prefix_cache()

    async def start_profile(self, num_steps: int, max_seconds: float) -> None:
        """Profile the core's next steps, see :meth:`engine.core.core.EngineCore.start_profile`."""
        self._require_alive()
        await self._client.start_profile(num_steps, max_seconds)

    async def stop_profile(self) -> bool:
        """End the profiled window; False when none is open."""
        self._require_alive()
        return await self._client.stop_profile()

    async def shutdown(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new requests, give those in flight ``drain_timeout_s`` seconds, then stop the core. May
        be called twice.
        """
        self._stopping = True
        if not self.is_dead and drain_timeout_s > 0:
            try:
                async with asyncio.timeout(drain_timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("requests in flight did not finish in %.1f s: aborted", drain_timeout_s)
        self._die(EngineDeadError("the engine was shut down"))
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._client.shutdown()

    async def _process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        priority: int,
        cache_salt: str | None,
    ) -> ProcessedRequest:
        def work() -> ProcessedRequest:
            return self._processor.process(
                prompt, params, request_id, priority=priority, cache_salt=cache_salt
            )

        texts = (prompt, *params.bad_words) if isinstance(params.bad_words, tuple) else (prompt,)
        if sum(len(text) for text in texts if isinstance(text, str)) > LONG_TEXT:
            return await asyncio.to_thread(work)
        return work()

    def _admit(self) -> None:
        """Queue limit: what the last step saw waiting, or what must be waiting by count, whichever is
        more.
        """
        limit = self.config.max_waiting_requests
        if limit is None:
            return
        in_flight = self._outputs.num_sequences
        waiting = max(min(self._stats.num_waiting, in_flight), in_flight - self.config.max_num_seqs)
        if waiting >= limit:
            raise QueueFullError(
                f"max_waiting_requests={limit}: {waiting} requests are waiting, try again later"
            )

    def _require_alive(self) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        if self._stopping:
            raise EngineDeadError("the engine is shutting down")

    def _die(self, error: EngineDeadError) -> None:
        if self.dead_error is None:
            self.dead_error = error
        self._outputs.fail_all(self.dead_error)
        self._idle.set()

    async def _read_outputs(self) -> None:
        try:
            while True:
                outputs = await self._client.get_outputs()
                self._stats = outputs.stats
                for listener in self._step_listeners:
                    listener(outputs)
                if to_abort := self._outputs.process(outputs):
                    self._client.abort(to_abort)
                await asyncio.sleep(
                    0
                )  # a step that is there already must not starve those who send the last one
        except EngineDeadError as error:
            self._die(error)
        except Exception as error:
            logger.exception("the front end failed to handle the engine's outputs")
            self._die(EngineDeadError(f"the front end failed: {type(error).__name__}: {error}"))
