"""Requests turned into bytes before anything is sent: no JSON is made while the clock runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from workloads import WorkloadRequest
from workloads.content import text_of

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Features:
    """Extensions of the API that the server was found to accept (vLLM's names)."""

    return_token_ids: bool = True
    ignore_eos: bool = True
    stream_usage: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """Place of a request in its conversation. What was said before is put into the body when it is known."""

    session: int
    number: int
    think_ns: int
    history_at: int
    """Byte of the body where the items of the history go."""
    said: bytes
    """What this turn adds, as items of a later turn's history."""
    scripted: bytes
    """The same for an answer that is fixed beforehand."""
    keep_reply: bool
    """Use the server's own answer where it is known as such items."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to send. Plain data: a worker process can be handed its share of the list."""

    request_id: str
    index: int
    phase: str
    group: str
    offset_ns: int | None
    max_tokens: int
    num_prompt_tokens: int | None
    body: bytes
    turn: Turn | None = None
    cancel_after_ns: int | None = None
    """The client hangs up so long after sending it."""


def prepare(
    requests: Iterable[WorkloadRequest],
    *,
    model: str,
    endpoint: Endpoint,
    features: Features,
    phase: str,
    id_prefix: str,
    extra_body: Mapping[str, Any],
    keep_replies: bool = True,
    cancel_after_ns: Mapping[int, int] | None = None,
) -> list[PreparedRequest]:
    """Serialise ``requests``. ``extra_body`` overrides every other field of the body.

    Args:
        keep_replies: later turns of a session hold the server's own answers.
        cancel_after_ns: index → when to hang up.
    """
    common: dict[str, Any] = {"model": model, "stream": True}
    if features.stream_usage:
        common["stream_options"] = {"include_usage": True}
    if features.return_token_ids:
        common["return_token_ids"] = True
    if features.ignore_eos:
        common["ignore_eos"] = True
    encode = msgspec.json.Encoder().encode
    cancels = cancel_after_ns or {}
    prepared = []
    for request in requests:
        # The prompt comes first: a history is put in right behind its opening bracket.
        said = content(request, endpoint)
        body = {**said, **common, "max_tokens": request.max_tokens, **request.extra_body, **extra_body}
        prepared.append(
            PreparedRequest(
                request_id=f"{id_prefix}{request.index}",
                index=request.index,
                phase=phase,
                group=request.group,
                offset_ns=request.offset_ns,
                max_tokens=request.max_tokens,
                num_prompt_tokens=request.num_prompt_tokens if endpoint == "completions" else None,
                body=encode(body),
                turn=_turn(request, said, endpoint, keep_replies),
                cancel_after_ns=cancels.get(request.index),
            )
        )
    return prepared


def _turn(
    request: WorkloadRequest, said: dict[str, Any], endpoint: Endpoint, keep_reply: bool
) -> Turn | None:
    if request.session is None:
        return None
    key, items = next(iter(said.items()))
    ids = request.scripted_reply
    reply = _ids(ids) if endpoint == "completions" else assistant_item(text_of(ids))
    return Turn(
        session=request.session,
        number=request.turn,
        think_ns=request.think_ns,
        history_at=len(f'{{"{key}":['),
        said=msgspec.json.encode(items)[1:-1],
        scripted=reply,
        keep_reply=keep_reply,
    )


def _ids(ids: NDArray[np.int32] | None) -> bytes:
    return b"" if ids is None else msgspec.json.encode(ids.tolist())[1:-1]


def assistant_item(text: str) -> bytes:
    """An answer as an item of ``messages``."""
    return msgspec.json.encode({"role": "assistant", "content": text})


def content(request: WorkloadRequest, endpoint: Endpoint) -> dict[str, Any]:
    """The prompt in the form that ``endpoint`` takes. Chat takes text only, so ids become words there
    (about one token each)."""
    if endpoint == "completions":
        if request.prompt_token_ids is not None:
            return {"prompt": request.prompt_token_ids.tolist()}
        if request.prompt is not None:
            return {"prompt": request.prompt}
        return {"prompt": "\n".join(str(m.get("content", "")) for m in request.messages or ())}
    if request.messages is not None:
        return {"messages": request.messages}
    text = request.prompt if request.prompt is not None else text_of(request.prompt_token_ids)
    return {"messages": [{"role": "user", "content": text}]}
