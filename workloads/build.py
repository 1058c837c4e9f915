"""From a spec to the list of requests: one global schedule, the same bytes whatever the number of workers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import offsets_ns
from workloads.content import DEFAULT_VOCAB_SIZE, prompt_ids
from workloads.errors import WorkloadError
from workloads.lengths import sample
from workloads.spec import WorkloadSpec


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadRequest:
    """One request to send. Exactly one of ``prompt_token_ids``, ``prompt`` and ``messages`` is set."""

    index: int
    offset_ns: int | None
    """Intended send time after the start; None in a closed loop."""
    group: str
    max_tokens: int
    prompt_token_ids: NDArray[np.int32] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    num_prompt_tokens: int | None = None
    """As built; None when only the server can count."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body (sampling parameters)."""


def build(
    spec: WorkloadSpec,
    *,
    seed: int,
    nonce: str,
    num_requests: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    vocab_size: int | None = None,
    max_model_len: int | None = None,
) -> list[WorkloadRequest]:
    """Build the requests of ``spec``, in order of sending.

    ``seed`` fixes the shape (arrivals, lengths, mix, order); ``nonce`` changes the content and nothing
    else, so a second run
    never measures the prefix cache that the first one filled (unless ``spec.reuse_content``).

    Args:
        num_requests: default: the spec's. With ``duration_s`` too: whatever ends first.
        duration_s: last arrival lies before this many seconds (open arrivals with a rate only).
        rate: requests per second; default: the spec's.
        vocab_size: size of the model's vocabulary; ids are drawn from its middle, where no special tokens
        lie. max_model_len: the model's context; a workload that may not fit is refused.

    Raises:
        WorkloadError: the request list can't be made as asked.
    """
    if max_model_len is not None and spec.max_total_tokens > max_model_len:
        raise WorkloadError(
            "workload",
            spec.name,
            f"up to {max_model_len} tokens (the model's context); a request needs {spec.max_total_tokens}",
        )
    rate = rate if rate is not None else spec.arrivals.rate
    count = _count(spec, num_requests, duration_s, rate)
    shape = np.random.default_rng(_entropy("shape", seed))
    arrivals_rng, mix_rng, length_rng = shape.spawn(3)
    offsets = offsets_ns(spec.arrivals, count, rate, arrivals_rng)
    if duration_s is not None and offsets is not None:
        offsets = offsets[offsets < duration_s * 1e9]
        limit = num_requests if num_requests is not None else len(offsets)
        offsets = offsets[:limit]
        count = len(offsets)
    classes = _mix(spec, count, mix_rng)
    inputs = np.empty(count, np.int64)
    outputs = np.empty(count, np.int64)
    for number, request_class in enumerate(spec.classes):
        mine = np.flatnonzero(classes == number)
        inputs[mine] = sample(request_class.input_tokens, len(mine), length_rng)
        outputs[mine] = sample(request_class.output_tokens, len(mine), length_rng)
    prompts = prompt_ids(
        spec,
        classes,
        inputs,
        vocab_size or DEFAULT_VOCAB_SIZE,
        _entropy("content", seed, "" if spec.reuse_content else nonce),
    )
    extra: dict[str, Any] = {"temperature": spec.temperature}
    return [
        WorkloadRequest(
            index=i,
            offset_ns=None if offsets is None else int(offsets[i]),
            group=spec.classes[classes[i]].name,
            max_tokens=int(outputs[i]),
            prompt_token_ids=prompts[i],
            num_prompt_tokens=int(inputs[i]),
            extra_body=extra,
        )
        for i in range(count)
    ]


def _count(spec: WorkloadSpec, num_requests: int | None, duration_s: float | None, rate: float | None) -> int:
    if num_requests is not None and num_requests < 1:
        raise WorkloadError("num_requests", num_requests, "at least 1")
    if duration_s is None:
        return num_requests if num_requests is not None else spec.num_requests
    if duration_s <= 0:
        raise WorkloadError("duration", duration_s, "seconds, above 0")
    if not spec.arrivals.open_rate or rate is None:
        raise WorkloadError(
            "duration", duration_s, "only for arrivals with a rate (else use num_requests or max_seconds)"
        )
    # Enough that the last arrival lies behind the end, whatever the seed; the rest is cut off.
    expected = rate * duration_s
    spread = 1.0 / min(spec.arrivals.burstiness, 1.0) if spec.arrivals.kind == "gamma" else 1.0
    return int(expected + 10.0 * np.sqrt(expected * spread) + 20.0 * spread)


def _mix(spec: WorkloadSpec, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Class number of each request: shares by largest remainder, so every seed has the same mix, in random
    order."""
    weights = np.array([c.weight for c in spec.classes])
    exact = count * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    short = count - int(counts.sum())
    # Stable: equal remainders go to the class named first.
    counts[np.argsort(-(exact - counts), kind="stable")[:short]] += 1
    return rng.permutation(np.repeat(np.arange(len(weights)), counts))


def _entropy(*parts: object) -> list[int]:
    """Seed words of a numpy generator: the same in every process and version of Python (no ``hash()``)."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
