"""One HTTP request's generation: its prompts through the engine, observed for the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from engine.errors import EngineDeadError, InvalidInputError, QueueFullError
from engine.frontend.outputs import RequestOutput
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError, engine_dead
from engine.server.merge import merge
from engine.server.state import ServerState


class Generation:
    """Submits every prompt, yields what comes back, aborts what is left when it is closed.

    Args:
        request_id: the user's id. With several prompts each gets ``-<index>`` appended.
        prompts: texts or token ids.
        params: shared by all prompts.
        field_names: what this endpoint's users call fields that the front end knows by another name.
    """

    def __init__(
        self,
        state: ServerState,
        request_id: str,
        prompts: Sequence[str | list[int]],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        field_names: Mapping[str, str] | None = None,
    ) -> None:
        self._state = state
        self.request_id = request_id
        self.prompts = prompts
        self.params = params
        self._priority = priority
        self._cache_salt = cache_salt
        self._field_names = field_names or {}
        self._arrival_ns = time.monotonic_ns()

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """``(prompt index, delta)`` in order of arrival.

        Raises:
            ApiError: 429, 503 (shutting down), 500 (engine died, or failed this request).
            InvalidInputError: the front end refused prompt or parameters; nothing was yielded yet.
        """
        state = self._state
        if state.engine.is_dead:
            raise engine_dead(state.engine.dead_error)
        with state.inflight.admit(len(self.prompts) * self.params.n, state.engine.stats):
            ended: FinishReason | None = FinishReason.ABORT
            observers = [state.metrics.observe(self.params, self._arrival_ns) for _ in self.prompts]
            try:
                async with aclosing(merge([self._submit(i) for i in range(len(self.prompts))])) as merged:
                    async for index, output in merged:
                        if output.error is not None:
                            raise ApiError(500, output.error, kind="server_error", code="request_failed")
                        observers[index].on_output(output, time.monotonic_ns())
                        yield index, output
            except asyncio.CancelledError:
                reason = state.inflight.ended_by
                task = asyncio.current_task()
                if reason is None or task is None:
                    raise  # the client has gone
                task.uncancel()
                raise reason from None
            except InvalidInputError as error:
                ended = None
                name = self._field_names.get(error.field, error.field)
                raise InvalidInputError(name, error.value, error.allowed) from None
            except QueueFullError:
                ended = None
                raise
            except (EngineDeadError, ApiError):
                ended = FinishReason.ERROR
                raise
            finally:
                for observer in observers:
                    observer.close(ended)

    def _submit(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        request_id = self.request_id if len(self.prompts) == 1 else f"{self.request_id}-{index}"
        return self._state.engine.generate(
            self.prompts[index],
            self.params,
            request_id,
            priority=self._priority,
            cache_salt=self._cache_salt,
        )
