"""One HTTP request's generation: its prompts through the engine, observed for the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.errors import EngineDeadError, InvalidInputError, QueueFullError
from engine.frontend.beam_search import BeamSearchParams
from engine.frontend.outputs import RequestOutput
from engine.messages import FinishReason
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError
from engine.server.merge import merge
from engine.server.state import ServerState


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a handler asks of the engine, all of it already in the engine's terms.

    ``field_names``: what this endpoint's users call fields that the front end knows by another name.
    """

    request_id: str
    """The user's id. With several prompts each gets ``-<index>`` appended."""
    prompts: Sequence[str | list[int]]
    params: SamplingParams | BeamSearchParams
    """Shared by all prompts."""
    priority: int = 0
    cache_salt: str | None = None
    field_names: Mapping[str, str] = field(default_factory=dict)


async def generate(
    state: ServerState, request: GenerationRequest
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Submit every prompt, yield ``(prompt index, delta)`` in order of arrival, abort what is left when
    closed.

    Raises:
        ApiError: 503 (shutting down), 500 (the engine failed this request).
        EngineDeadError: the engine died.
        InvalidInputError, QueueFullError: refused by the front end; nothing was yielded yet.
    """
    arrival_ns = time.monotonic_ns()
    ended: FinishReason | None = FinishReason.ABORT
    with state.inflight.enter():
        observers = [state.metrics.observe(request.params, arrival_ns) for _ in request.prompts]
        streams = [_submit(state, request, index) for index in range(len(request.prompts))]
        try:
            async with aclosing(merge(streams)) as merged:
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
            name = request.field_names.get(error.field, error.field)
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


def _submit(
    state: ServerState, request: GenerationRequest, index: int
) -> AsyncGenerator[RequestOutput, None]:
    request_id = request.request_id if len(request.prompts) == 1 else f"{request.request_id}-{index}"
    prompt = request.prompts[index]
    if isinstance(request.params, BeamSearchParams):
        return _beam_search(state, prompt, request.params, request_id, request.cache_salt)
    return state.engine.generate(
        prompt, request.params, request_id, priority=request.priority, cache_salt=request.cache_salt
    )


async def _beam_search(
    state: ServerState,
    prompt: str | list[int],
    params: BeamSearchParams,
    request_id: str,
    cache_salt: str | None,
) -> AsyncGenerator[RequestOutput, None]:
    """Beams are ranked at the end, so there is one output: all of it."""
    yield await state.engine.beam_search(prompt, params, request_id, cache_salt=cache_salt)
