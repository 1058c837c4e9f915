"""What the front end and the core say to each other: plain structs, msgpack on the wire, no tensors.

The same objects pass by reference when the core runs in process.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.sampling_params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. ``request_id`` is unique inside the engine; ``external_id`` is the user's."""

    request_id: str
    external_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int]
    arrival_ns: int
    priority: int = 0
    cache_salt: str | None = None
    submitted_ns: int | None = None
    """When the front end had validated and tokenised it; from then on it waits for the core."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Logprobs at one position: parallel lists, the chosen token first, then the best ones in falling order.

    ``rank`` counts from 1 and is the chosen token's rank in the whole vocabulary.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RequestTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Core-side stamps of a request (monotonic ns); None = it has not happened. Preemptions: so far."""

    arrival_ns: int
    queued_ns: int
    scheduled_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    num_preemptions: int


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of one request after one step."""

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """One entry per new token, when asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Sent once, complete, with the first token; entry 0 is None (nothing precedes it)."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id that ended it; None for eos."""
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache, when the request was first scheduled."""
    timings: RequestTimings | None = None
    """With the first token, and with ``finish_reason``."""
    error: str | None = None


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for gauges, and counters since the start (tokens unless the name says otherwise)."""

    num_running: int
    num_waiting: int
    kv_blocks_total: int
    """Usable blocks: the null block is not counted."""
    kv_blocks_used: int
    num_preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    resumed_prefix_cache_queries: int
    resumed_prefix_cache_hits: int
    prompt_tokens_recomputed: int
    num_steps: int
    last_step_tokens: int


class KVBlockEviction(msgspec.Struct, frozen=True, kw_only=True):
    """A followed KV block was given to other content (see :mod:`engine.kv.residency`); nanoseconds."""

    lifetime_ns: int
    """Since it was taken."""
    idle_ns: int
    """Since its last prefix hit, or since it was taken."""
    reuse_gaps_ns: list[int]
    """Between its last few hits."""


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one step has to tell the front end."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats
    step_tokens: int
    timestamp_ns: int
    """When the core had taken in the step's result (monotonic)."""
    kv_evictions: list[KVBlockEviction] = []
    """With ``kv_cache_metrics``: since the last step."""
