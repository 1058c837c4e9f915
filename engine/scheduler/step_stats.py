"""What the trace says about a step besides its time stamps."""

from __future__ import annotations

from typing import NamedTuple


class StepStats(NamedTuple):
    """Names, order and meaning of the columns after the stamps in
    :data:`engine.trace.records.STEP_COLUMNS`.
    """

    num_prefill_reqs: int
    num_decode_reqs: int
    prefill_tokens: int
    decode_tokens: int
    prefill_sum_sk: int
    prefill_sum_sq2: int
    prefill_sum_sqsk: int
    decode_sum_sk: int
    num_running: int
    num_waiting: int
    admission_stop: str
    kv_used: int
    kv_free: int
    kv_cached: int
    kv_evicted: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    num_preempted: int
    preempted_tokens: int
