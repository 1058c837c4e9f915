"""Schemas of the client-side tables of a run. Time: CLOCK_MONOTONIC ns. Missing is null, never 0."""

from __future__ import annotations

import pyarrow as pa

REQUESTS_SCHEMA_VERSION = 1
CHUNKS_SCHEMA_VERSION = 1
TELEMETRY_SCHEMA_VERSION = 1

REQUESTS = pa.schema(
    [
        ("request_id", pa.string()),  # sent as X-Request-Id; joins the engine's events
        ("index", pa.int32()),  # place in the schedule
        ("phase", pa.string()),  # warmup | measure
        ("group", pa.string()),  # class inside a mixed workload: "chat", "document"
        ("worker", pa.int16()),
        ("intended_ns", pa.int64()),  # when the schedule wanted it sent; null in a closed loop
        ("released_ns", pa.int64()),  # when nothing but the client itself held it back any more
        ("sent_ns", pa.int64()),
        ("headers_ns", pa.int64()),
        ("first_token_ns", pa.int64()),  # first event with at least one generated token
        ("last_token_ns", pa.int64()),
        ("close_ns", pa.int64()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("output_tokens_source", pa.string()),  # token_ids | usage | tokenizer | chunks
        ("first_event_tokens", pa.int32()),
        ("max_tokens", pa.int32()),
        ("status", pa.string()),  # ok | failed | cancelled
        ("http_status", pa.int16()),
        ("error_class", pa.string()),  # see workbench/load/errors.py
        ("error", pa.string()),
        ("finish_reason", pa.string()),
        ("output_sha256", pa.string()),  # of the output token ids (or text), for equivalence checks
        ("session", pa.int32()),  # conversation and place in it; null outside of conversations
        ("turn", pa.int16()),
        ("attempts", pa.int16()),  # times it was sent: more than 1 only with retries
    ]
)

CHUNKS = pa.schema(
    [
        ("request_id", pa.string()),
        ("recv_ns", pa.int64()),
        ("kind", pa.string()),  # content | reasoning | tool | role | empty | usage | done | error
        ("n_tokens", pa.int32()),
        ("n_tokens_source", pa.string()),
    ]
)

TELEMETRY = pa.schema(
    [
        ("t_ns", pa.int64()),
        ("name", pa.string()),
        ("value", pa.float64()),  # null when status is not "ok"
        ("unit", pa.string()),
        ("source", pa.string()),
        ("status", pa.string()),  # ok | not_supported | no_permission | lost
    ]
)
