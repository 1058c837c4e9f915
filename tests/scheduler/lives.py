"""Random lives without hypothesis: as in ``test_state_machine.py``, drawn by ``random``, so that the
engine is what takes the time.

Every configuration, tiny pools, adds, aborts, resets, every invariant after every step, each request against
the oracle. What fails is named by the seed of the life.
"""

from __future__ import annotations

import random
from typing import Any

from engine.errors import InvalidInputError
from engine.messages import FinishReason
from tests.scheduler.harness import Harness, make_request

STEPS_PER_LIFE = 200


def make_config(rng: random.Random) -> dict[str, Any]:
    max_num_seqs = rng.randint(1, 5)
    chunked = rng.random() < 0.75
    return {
        "num_blocks": rng.randint(2, 16),
        "block_size": rng.randint(1, 4),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + rng.randint(0, 12) if chunked else 64,
        "max_model_len": rng.choice((None, rng.randint(2, 40))),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": rng.choice((0, 0, 1, 3)),
        "max_num_partial_prefills": rng.choice((None, None, 1, 2)),
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
        "watermark": rng.choice((0.0, 0.0, 0.3)),
        "enable_prefix_caching": rng.random() < 0.75,
        "async_scheduling": rng.random() < 0.5,
    }


def live(seed: int) -> tuple[int, int]:
    """One harness from birth to idle; steps and preemptions."""
    rng = random.Random(seed)
    harness = Harness(**make_config(rng))
    open_ids: list[str] = []
    steps = 0
    while steps < STEPS_PER_LIFE or harness.core.has_work():
        growing = steps < STEPS_PER_LIFE
        if growing and (not open_ids or rng.random() < 0.3):
            _add(harness, rng, open_ids, f"{seed}-{steps}")
        if open_ids and rng.random() < 0.03:
            request_id = open_ids.pop(rng.randrange(len(open_ids)))
            harness.scheduler.abort([request_id])
        if rng.random() < 0.01:
            harness.core.reset_prefix_cache(reset_running_requests=rng.random() < 0.5)
        steps += 1
        for output in harness.step():
            if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                open_ids.remove(output.request_id)
                harness.check_finished(output.request_id)
    harness.check_idle()
    return steps, harness.core.stats().num_preemptions


def _add(harness: Harness, rng: random.Random, open_ids: list[str], request_id: str) -> None:
    prefix = rng.choice(([1] * 9, [1] * 5 + [2] * 4, list(range(3, 12)), []))[: rng.randint(0, 9)]
    prompt = prefix + [rng.randint(0, 2) for _ in range(rng.randint(0, 9))]
    request = make_request(
        request_id,
        prompt or [0],
        rng.choice((None, rng.randint(1, 12))),
        ignore_eos=rng.random() < 0.5,
        priority=rng.randint(0, 2),
        cache_salt=rng.choice((None, None, "a", "b")),
        prompt_logprobs=rng.choice((None, None, None, 1)),
        seed=rng.randint(0, 1),
    )
    try:
        harness.add_request(request)
    except InvalidInputError:  # it could never fit
        return
    open_ids.append(request_id)
