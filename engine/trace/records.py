"""Schemas of the engine's own tables: names, types, meaning. Time: monotonic ns. Missing is null, never 0."""

from __future__ import annotations

from enum import StrEnum

STEPS_SCHEMA_VERSION = 1
EVENTS_SCHEMA_VERSION = 1


class AdmissionStop(StrEnum):
    """Why a step admitted no further request."""

    TOKEN_BUDGET = "token_budget"
    MAX_NUM_SEQS = "max_num_seqs"
    KV_BLOCKS = "kv_blocks"
    LONG_PREFILL_CAP = "long_prefill_cap"
    REMOTE_LOAD = "remote_load"
    PREEMPTED = "preempted"
    QUEUE_EMPTY = "queue_empty"


class EventKind(StrEnum):
    """What happened to a request. ``tokens``/``value`` carry the figure named behind each."""

    QUEUED = "queued"  # tokens = prompt tokens, value = when the front end handed it over (ns)
    SCHEDULED = "scheduled"  # tokens = tokens given in this step, value = computed mark before it
    PREFIX_HIT = "prefix_hit"  # tokens = tokens found in the prefix cache
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"  # tokens = computed tokens lost
    RESUMED = "resumed"  # tokens = computed tokens found again in the cache
    FINISHED = "finished"  # tokens = output tokens, detail = finish reason


STEP_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step_id", "int64"),
    ("t_start", "int64"),  # schedule begins
    ("t_schedule", "int64"),  # plan ready
    ("t_prepare", "int64"),  # inputs ready
    ("t_forward", "int64"),  # logits ready
    ("t_sample", "int64"),  # tokens chosen
    ("t_end", "int64"),  # outputs handed over
    ("num_prefill_reqs", "int32"),  # requests that computed prompt tokens (or recomputed any)
    ("num_decode_reqs", "int32"),  # requests that computed exactly their newest token
    ("prefill_tokens", "int32"),
    ("decode_tokens", "int32"),
    ("prefill_sum_sk", "int64"),  # Σ context length after the step
    ("prefill_sum_sq2", "int64"),  # Σ query length squared
    ("prefill_sum_sqsk", "int64"),  # Σ query length · context length
    ("decode_sum_sk", "int64"),
    ("num_running", "int32"),
    ("num_waiting", "int32"),
    ("admission_stop", "string"),
    ("kv_used", "int32"),
    ("kv_free", "int32"),  # never-hashed or evicted: nothing to find in them
    ("kv_cached", "int32"),  # free, but findable
    ("kv_evicted", "int32"),  # cached blocks lost to reuse in this step
    ("prefix_query_tokens", "int32"),
    ("prefix_hit_tokens", "int32"),
    ("num_preempted", "int32"),
    ("preempted_tokens", "int32"),  # computed tokens lost to preemption in this step
    ("gpu_forward_ns", "int64"),  # forward by the device's clock; null on the CPU and without samples
)

EVENT_COLUMNS: tuple[tuple[str, str], ...] = (
    ("t_ns", "int64"),
    ("request_id", "string"),  # the external id: joins the client's rows
    ("core_id", "string"),  # unique inside the engine (n > 1 gives several to one request)
    ("kind", "string"),
    ("step_id", "int64"),  # null for events outside a step
    ("tokens", "int32"),
    ("value", "int64"),
    ("detail", "string"),
)
