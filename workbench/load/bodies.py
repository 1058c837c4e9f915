"""Requests turned into bytes before anything is sent: no JSON is made while the clock runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

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


def prepare(
    requests: Iterable[WorkloadRequest],
    *,
    model: str,
    endpoint: Endpoint,
    features: Features,
    phase: str,
    id_prefix: str,
    extra_body: Mapping[str, Any],
) -> list[PreparedRequest]:
    """Serialise ``requests``. ``extra_body`` overrides every other field of the body."""
    common: dict[str, Any] = {"model": model, "stream": True}
    if features.stream_usage:
        common["stream_options"] = {"include_usage": True}
    if features.return_token_ids:
        common["return_token_ids"] = True
    if features.ignore_eos:
        common["ignore_eos"] = True
    encode = msgspec.json.Encoder().encode
    prepared = []
    for request in requests:
        body = {**common, "max_tokens": request.max_tokens, **request.extra_body}
        body.update(content(request, endpoint))
        body.update(extra_body)
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
            )
        )
    return prepared


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
