"""A random scenario, fixed by its seed: an engine configuration built to hurt, requests that vanish."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 96
MAX_MODEL_LEN = 96
EOS = 2


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is to compute in a scenario; everything else about it is the same.

    ``groups``: of requests, least and most. ``prefixes``: lengths of shared ones. ``suffix``: most tokens
    behind one. ``max_tokens``: most that a request may ask for.
    """

    groups: tuple[int, int] = (2, 5)
    prefixes: tuple[int, ...] = (4, 8, 16, 24)
    suffix: int = 20
    max_tokens: int = 24


FULL = Size()
SMALL = Size(groups=(2, 3), prefixes=(4, 8), suffix=4, max_tokens=10)
"""For a backend that is slow: a third of the tokens, half of the preemptions."""


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """``abort_step``: the step after which the client goes away; None = it stays."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrive_step: int
    abort_step: int | None
    priority: int
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    config: EngineConfig
    requests: tuple[RequestSpec, ...]


def make_scenario(seed: int, size: Size = FULL) -> Scenario:
    rng = random.Random(seed)
    prefixes = [
        tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice(size.prefixes))) for _ in range(2)
    ]
    groups = [_request_group(rng, prefixes, size) for _ in range(rng.randint(*size.groups))]
    requests = tuple(request for group in groups for request in group)
    return Scenario(seed, _config(rng, requests), requests)


def _config(rng: random.Random, requests: tuple[RequestSpec, ...]) -> EngineConfig:
    block_size = rng.choice((1, 2, 4, 8, 16))
    longest = max(len(r.prompt) + (r.params.max_tokens or 0) for r in requests)
    # One block beyond the longest request and the null block: the next one in forces preemption.
    tight = -(-longest // block_size) + 2 + rng.randint(0, 3)
    roomy = -(-MAX_MODEL_LEN // block_size) * len(requests) + 1
    max_num_seqs = rng.choice((1, 2, 3, 8))
    chunked = rng.random() < 0.85
    budget = rng.choice((max_num_seqs, max_num_seqs + 1, 16, 33, 96)) if chunked else MAX_MODEL_LEN
    return EngineConfig(
        model="tiny",
        max_model_len=MAX_MODEL_LEN,
        block_size=block_size,
        num_gpu_blocks_override=tight if rng.random() < 0.6 else roomy,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice((0, 0, 3, 9)) if chunked else 0,
        max_num_partial_prefills=rng.choice((None, None, 1, 2)),
        enable_prefix_caching=rng.random() < 0.6,
        scheduling_policy=rng.choice(("fcfs", "priority")),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        watermark=rng.choice((0.0, 0.0, 0.05)),
        async_scheduling=rng.random() < 0.5,
        check_invariants=True,
    )


def _request_group(rng: random.Random, prefixes: list[tuple[int, ...]], size: Size) -> list[RequestSpec]:
    """One request, or the children of an ``n`` > 1 request: same prompt, seeds apart."""
    prefix = rng.choice(prefixes)[: rng.choice((4, 8, 99))] if rng.random() < 0.7 else ()
    suffix = rng.randint(0 if prefix else 1, size.suffix)
    prompt = prefix + tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(suffix))
    params = _params(rng, size)
    n = rng.choice((1, 1, 1, 3)) if not params.greedy else 1
    arrive = rng.choice((0, 0, rng.randint(1, 12)))
    return [
        RequestSpec(
            prompt=prompt,
            params=_with_seed(params, index),
            arrive_step=arrive,
            abort_step=arrive + rng.randint(0, 12) if rng.random() < 0.15 else None,
            priority=rng.randint(0, 2),
            cache_salt=rng.choice((None, None, None, "a")),
        )
        for index in range(n)
    ]


def _with_seed(params: SamplingParams, index: int) -> SamplingParams:
    import msgspec

    return msgspec.structs.replace(params, seed=(params.seed or 0) + index)


def _params(rng: random.Random, size: Size) -> SamplingParams:
    def maybe(chance: float, value: object, default: object) -> object:
        return value if rng.random() < chance else default

    max_tokens = rng.randint(1, size.max_tokens)
    fields: dict[str, object] = {
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0, 1.6)),
        "top_p": maybe(0.3, rng.choice((0.3, 0.9)), 1.0),
        "top_k": maybe(0.3, rng.choice((1, 5, 20)), 0),
        "min_p": maybe(0.2, 0.1, 0.0),
        "presence_penalty": maybe(0.2, rng.choice((-1.0, 1.5)), 0.0),
        "frequency_penalty": maybe(0.2, rng.choice((-0.5, 1.0)), 0.0),
        "repetition_penalty": maybe(0.25, rng.choice((0.8, 1.4)), 1.0),
        "seed": rng.randrange(2**31),
        "max_tokens": max_tokens,
        "min_tokens": maybe(0.3, rng.randint(1, max_tokens), 0),
        "ignore_eos": rng.random() < 0.3,
        "stop_token_ids": maybe(0.3, tuple(rng.sample(range(3, VOCAB_SIZE), 6)), ()),
        "logit_bias": maybe(
            0.2, {rng.randrange(VOCAB_SIZE): rng.choice((-100.0, 4.0)) for _ in range(3)}, {}
        ),
        "allowed_token_ids": maybe(0.1, tuple(sorted(rng.sample(range(VOCAB_SIZE), 40))), ()),
        "bad_words_token_ids": maybe(0.2, ((rng.randrange(VOCAB_SIZE),), (5, rng.randrange(VOCAB_SIZE))), ()),
        "logprobs": maybe(0.2, rng.choice((0, 2)), None),
        "prompt_logprobs": maybe(0.1, 1, None),
    }
    return SamplingParams(**fields)  # type: ignore[arg-type]  # the table above is typed by its names
