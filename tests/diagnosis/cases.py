"""The planted faults: each case is one world, the verdict it must get, and nothing else may be accused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.diagnose import diagnose
from experiments.diagnosis.models import Diagnosis
from tests.diagnosis.world import MS, StepCost, Traffic, World, bundle, poisson

Damage = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Case:
    """``family`` and ``cause`` of the right top finding; None: every family must abstain. ``also`` are
    findings that are true as well, below the top. ``says`` must be in the top claim, or in an abstention.
    """

    name: str
    world: World
    family: str | None = None
    cause: str | None = None
    also: frozenset[str] = frozenset()
    says: str = ""
    against: Sequence[World] = ()
    damage: Damage | None = None
    sweeps: str | None = None
    """The factor of the next experiment."""
    rival: str = ""
    """The look-alike that this case is, in words for the table."""


def run_case(case: Case) -> Diagnosis:
    """Serve the world, diagnose the run."""
    references: list[RunBundle] = [bundle(world) for world in case.against]
    return diagnose(bundle(case.world, case.damage), references)


def keep(table: str, share: float) -> Damage:
    """Only the first ``share`` of a table's rows are there."""

    def damage(tables: dict[str, Any]) -> None:
        found = tables[table]
        tables[table] = found.slice(0, int(share * found.num_rows))

    return damage


def no_engine_tables(tables: dict[str, Any]) -> None:
    tables["steps"] = tables["events"] = None


def compute_bound(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    """Twice the tokens, twice the time: nothing is won by batching."""
    return 0.3 * MS + 400_000 * tokens


def disturbed(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    """A CPU (9 ms for the weights, 1.5 ms a token) that gets less of its cores for 0.4 s of each second."""
    return (9 * MS + 1_500_000 * tokens + 2_000 * sum_kv) * (1.6 if seconds % 1.0 < 0.4 else 1.0)


def context_cost(per_token: float) -> StepCost:
    return lambda tokens, requests, sum_kv, seconds: 4 * MS + 20_000 * tokens + per_token * sum_kv


def batch_cost(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    return 4 * MS + 700_000 * requests


def leap_at_12(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    return (5 if requests < 12 else 10) * MS + 10_000 * tokens + 200 * sum_kv


def slowing_clock(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    return (4 * MS + 20_000 * tokens + 1_000 * sum_kv) * (1 + 0.02 * seconds)


def decoders(count: int = 24, prompt: int = 512, output: int = 600, gap_s: float = 1.0) -> list[Traffic]:
    """Long answers that come and go one after the other: batch and context both vary, not together."""
    rng = np.random.default_rng(5)
    return [
        Traffic(gap_s * i, int(prompt * rng.uniform(0.2, 6)), int(output * rng.uniform(0.4, 1.6)))
        for i in range(count)
    ]


def shared(count: int, rate: float) -> list[Traffic]:
    """Half of the prompts begin with the same 256 tokens."""
    return [replace(t, prefix=256 if i % 2 else 0) for i, t in enumerate(poisson(count, rate, 400, 12))]


CHAT = poisson(120, 20.0, 120, 40)
HEALTHY = World(CHAT)
KNOWN = {"kv_cache_bytes": 4096 * 16 * 100_000}
"""100 kB a token: at 50 GB/s 2 µs a token of context."""
FAST = {"memory_read_gb_s": 50.0}
CACHED = World(shared(80, 12.0), {"enable_prefix_caching": True})
UNCACHED = replace(CACHED, engine={"enable_prefix_caching": False}, name="off")
STARVED = [
    (t / 2, name, value, "%", "pid 7 tid 7 python")
    for t in range(1, 14)
    for name, value in (("server.thread.cpu", 70.0), ("server.thread.run_wait", 28.0))
]
CLOCK = [(t / 2, "system.cpu_freq", 3000.0 * (1 - 0.012 * t), "MHz", "psutil") for t in range(60)]
LONG_MIX = sorted(
    poisson(110, 20.0, 64, 24) + [Traffic(0.5 + i, 8000, 8) for i in range(5)], key=lambda t: t.due_s
)

CASES = [
    # 1 queueing
    Case(
        "token budget of 64, prompts of 512",
        World(poisson(80, 14.0, 512, 12), {"max_num_batched_tokens": 64, "max_num_seqs": 64}),
        "queueing",
        "token_budget",
        sweeps="chunk_size",
    ),
    Case(
        "token budget of 16 on a machine that others use",
        World(poisson(60, 1.6, 200, 24), {"max_num_batched_tokens": 16, "max_num_seqs": 16}, cost=disturbed),
        "queueing",
        "token_budget",
        sweeps="chunk_size",
        rival="machine full",
    ),
    Case(
        "two places in the batch",
        World(poisson(80, 9.0, 120, 40), {"max_num_seqs": 2}),
        "queueing",
        "max_num_seqs",
        sweeps="max_num_seqs",
    ),
    Case(
        "batch capped at one, queue waiting",
        World(poisson(60, 5.0, 120, 40), {"max_num_seqs": 1}),
        "queueing",
        "max_num_seqs",
        sweeps="max_num_seqs",
    ),
    Case(
        "KV for three requests",
        World(poisson(80, 15.0, 400, 16), {"num_gpu_blocks_override": 90}),
        "queueing",
        "kv_blocks",
        sweeps="num_gpu_blocks_override",
    ),
    Case(
        "8k prompts among short ones",
        World(
            LONG_MIX,
            {"max_num_batched_tokens": 2048},
            cost=lambda n, r, kv, s: 5 * MS + 120_000 * n + 10 * kv,
        ),
        "queueing",
        "long_prefill",
        sweeps="long_prefill_token_threshold",
    ),
    Case(
        "one prefill at a time",
        World(
            poisson(100, 40.0, 600, 8), {"max_num_partial_prefills": 1, "long_prefill_token_threshold": 64}
        ),
        "queueing",
        "long_prefill_cap",
        sweeps="max_num_partial_prefills",
    ),
    Case(
        "tokenizer with one thread",
        World(poisson(100, 40.0, 60, 12), front_end_ns=24 * MS, serial_front_end=True),
        "queueing",
        "front_end",
        sweeps="stream_interval",
        rival="queue",
    ),
    Case(
        "client with two slots",
        World(poisson(100, 20.0, 120, 40), client_cap=2),
        says="client",
        rival="queue",
    ),
    # 2 accelerator gaps
    Case(
        "3 ms of input preparation",
        replace(HEALTHY, prepare_ns=3 * MS),
        "accelerator_gaps",
        "prepare",
        sweeps="async_scheduling",
    ),
    Case(
        "blocking copy of the logits",
        replace(HEALTHY, sample_ns=4 * MS),
        "accelerator_gaps",
        "synchronisation",
        sweeps="async_scheduling",
    ),
    Case(
        "late batch forming",
        replace(HEALTHY, between_ns=3 * MS),
        "accelerator_gaps",
        "batch_forming",
        sweeps="async_scheduling",
    ),
    Case(
        "a neighbour on the engine's core",
        replace(HEALTHY, between_ns=2 * MS, prepare_ns=MS, telemetry=STARVED),
        "accelerator_gaps",
        "starvation",
        sweeps="num_threads",
        rival="preparation",
    ),
    Case(
        "a GPU, 3 ms of input preparation",
        replace(HEALTHY, device=True, prepare_ns=3 * MS),
        "accelerator_gaps",
        "prepare",
        sweeps="async_scheduling",
    ),
    # 3 context
    Case(
        "attention reads KV five times",
        World(decoders(gap_s=5.0), cost=context_cost(10_000), echo=KNOWN, machine=FAST),
        "context_scaling",
        "attention_kernel",
        sweeps="attention_backend",
    ),
    Case(
        "context costs what its bytes cost",
        World(decoders(), cost=context_cost(2_200), echo=KNOWN, machine=FAST),
        rival="attention",
    ),
    Case("batch grows, not context", World(decoders(40, gap_s=0.3), cost=batch_cost), rival="attention"),
    Case(
        "kernel path changes at batch 12",
        World(
            decoders(60, gap_s=0.4, output=900),
            {"num_gpu_blocks_override": 20_000},
            cost=leap_at_12,
            echo=KNOWN,
            machine=FAST,
        ),
        "context_scaling",
        "kernel_path_break",
        sweeps="attention_backend",
        rival="attention",
    ),
    Case(
        "clock falls during the run",
        World(decoders(), cost=slowing_clock, telemetry=CLOCK, echo=KNOWN, machine=FAST),
        rival="attention",
    ),
    # 4 cache correctness
    Case(
        "wrong blocks on a hit",
        replace(CACHED, hit_salt=5),
        "cache_correctness",
        "wrong_results",
        against=(UNCACHED,),
        sweeps="enable_prefix_caching",
    ),
    Case(
        "results lost on a hit",
        replace(CACHED, lose_hits=True),
        "cache_correctness",
        "missing_results",
        against=(UNCACHED,),
        sweeps="enable_prefix_caching",
    ),
    Case(
        "outputs differ by themselves",
        replace(CACHED, natural=0.15),
        rival="wrong blocks",
        against=(replace(UNCACHED, natural=0.15),),
    ),
    Case("cache is right", CACHED, against=(UNCACHED,), says="no corruption"),
    Case(
        "other requests in the baseline",
        replace(CACHED, hit_salt=5),
        says="different requests",
        against=(replace(UNCACHED, nonce="other", name="other"),),
        rival="wrong blocks",
    ),
    # 5 preemption
    Case(
        "KV at 40 % of the peak demand",
        World(poisson(60, 12.0, 60, 300), {"num_gpu_blocks_override": 160, "enable_prefix_caching": False}),
        "preemption",
        "kv_blocks",
        also=frozenset({"queueing"}),
        sweeps="num_gpu_blocks_override",
    ),
    Case(
        "long answers only",
        World(
            [Traffic(0.02 * i, 16, 500) for i in range(24)],
            {"num_gpu_blocks_override": 240, "enable_prefix_caching": False},
        ),
        "preemption",
        "kv_blocks",
        also=frozenset({"queueing"}),
        sweeps="num_gpu_blocks_override",
    ),
    Case(
        "blocks leak",
        World(
            poisson(60, 8.0, 60, 200),
            {"num_gpu_blocks_override": 400, "enable_prefix_caching": False},
            leaked_blocks=280,
        ),
        "preemption",
        "leaked_blocks",
        also=frozenset({"queueing"}),
        sweeps="enable_prefix_caching",
        rival="small pool",
    ),
    Case(
        "equal prefixes computed by everybody",
        World(
            [replace(t, prefix=180) for t in poisson(60, 12.0, 260, 200)],
            {"num_gpu_blocks_override": 260, "enable_prefix_caching": False},
            workload={
                "classes": [
                    {"prefix_tokens": 180, "weight": 1.0, "input_tokens": {"kind": "constant", "value": 260}}
                ]
            },
        ),
        "preemption",
        "sharing_off",
        also=frozenset({"queueing"}),
        sweeps="enable_prefix_caching",
        rival="small pool",
    ),
    # nobody is to blame
    Case("healthy", HEALTHY),
    Case("healthy, asynchronous", replace(HEALTHY, engine={"async_scheduling": True})),
    Case("healthy, on a GPU", replace(HEALTHY, device=True), rival="synchronisation"),
    Case("healthy, closed loop", World([Traffic(0.0, 120, 40)] * 80, client_cap=8, closed=True)),
    Case("idle", World([Traffic(2.0 * i, 120, 30) for i in range(20)]), says="insufficient load"),
    Case(
        "idle, slow preparation",
        World([Traffic(2.0 * i, 120, 30) for i in range(20)], prepare_ns=5 * MS),
        says="insufficient load",
        rival="accelerator gaps",
    ),
    Case(
        "overload only",
        World(poisson(150, 40.0, 120, 40), {"max_num_seqs": 64}, cost=compute_bound),
        says="overload",
        rival="queue",
    ),
    Case(
        "events end early",
        World(poisson(80, 9.0, 120, 40), {"max_num_seqs": 2}),
        damage=keep("events", 0.4),
        says="trace coverage",
    ),
    Case(
        "steps end early",
        replace(HEALTHY, prepare_ns=3 * MS),
        damage=keep("steps", 0.41),
        says="trace coverage",
    ),
    Case(
        "no engine trace",
        World(poisson(80, 9.0, 120, 40), {"max_num_seqs": 2}),
        damage=no_engine_tables,
        says="no engine trace",
    ),
]
