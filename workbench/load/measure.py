"""The asynchronous part of a run: meet the server, prepare the bytes, warm up, measure."""

from __future__ import annotations

import resource
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import numpy as np

from workbench.benchspec import BenchSpec
from workbench.load.bodies import PATHS, Features, PreparedRequest, prepare
from workbench.load.deal import worker_count
from workbench.load.loops import loop_name
from workbench.load.pool import play_in_workers
from workbench.load.progress import BenchProgress, ProgressCallback
from workbench.load.ready import negotiate, server_facts
from workbench.load.runner import LoadPlan, LoadResult, play
from workbench.load.tokenizer import token_counter
from workbench.load.wire import open_session
from workbench.targets.base import ServerFacts, Target
from workloads import Arrivals, SessionsSource, WorkloadRequest, build, build_all

_WARMUP_SEED = 0x5EED
"""Added to the run's seed: other lengths and other content than the measured requests have."""
_HANG_UP_STREAM = 0xCA11


@dataclass(frozen=True, slots=True)
class Measured:
    facts: ServerFacts
    features: Features
    workload_notes: dict[str, Any]
    """What building the workload did to its source (rows dropped, cut, spread)."""
    warmup: LoadResult | None
    load: LoadResult
    loop: str
    """open | closed | hybrid"""
    event_loop: str
    """uvloop | asyncio"""
    workers: int
    """Processes that sent the load."""


async def measure(
    spec: BenchSpec,
    target: Target,
    nonce: str,
    *,
    on_facts: Callable[[ServerFacts, Features], None],
    progress: ProgressCallback | None,
) -> Measured:
    """Run ``spec`` against ``target``. ``on_facts`` is told who the server is before the load begins.

    Raises:
        InvalidInputError, WorkloadError, TargetError: before anything was measured.
    """
    _raise_file_limit()
    async with open_session(_headers(spec), spec.deadlines) as session:
        show = progress or _unseen

        def waiting(note: str) -> None:
            show(BenchProgress(phase="starting", note=note))

        facts = await server_facts(session, target.base_url, spec.model, spec.ready_timeout_s, waiting)
        warmup_plan, plan, features, notes = await _plans(spec, target, facts, nonce, session, show)
        on_facts(facts, features)
        warmup = None
        if warmup_plan.requests:
            warmup = await play(warmup_plan, session, progress)
            if warmup.interrupted:
                nothing = LoadResult([], warmup.end_ns, warmup.end_ns, interrupted=True, cut=True)
                return Measured(facts, features, notes, warmup, nothing, plan.loop, loop_name(), 1)
        if progress is not None:
            progress(BenchProgress(phase="measuring", planned=len(plan.requests)))
        workers = worker_count(plan, spec.workers)
        if workers == 1:
            load = await play(plan, session, progress)
        else:
            load = await play_in_workers(plan, workers, _headers(spec), progress)
    return Measured(facts, features, notes, warmup, load, plan.loop, loop_name(), workers)


async def _plans(
    spec: BenchSpec,
    target: Target,
    facts: ServerFacts,
    nonce: str,
    session: aiohttp.ClientSession,
    show: ProgressCallback,
) -> tuple[LoadPlan, LoadPlan, Features, dict[str, Any]]:
    """Everything that will be sent, as bytes; and what building the workload did to its source."""
    show(BenchProgress(phase="building the workload"))
    sizes = {"vocab_size": facts.vocab_size, "max_model_len": facts.max_model_len}
    built = build_all(
        spec.workload,
        seed=spec.seed,
        nonce=nonce,
        num_requests=spec.num_requests,
        duration_s=spec.duration_s,
        rate=spec.rate,
        count_tokens=token_counter(spec.tokenizer),
        **sizes,
    )
    requests = built.requests
    # One more than the warm-up needs: the probe's own prompt.
    others = _warmup_requests(spec, nonce, sizes)
    shortest = min(others, key=lambda r: r.num_prompt_tokens or 0)
    show(BenchProgress(phase="first request"))
    features = await negotiate(
        session, target.base_url, spec.endpoint, facts.model, shortest, spec.extra_body, spec.ready_timeout_s
    )
    prefix = spec.request_id_prefix or f"{secrets.token_hex(4)}-"
    url = target.base_url + PATHS[spec.endpoint]

    source = spec.workload.source
    keep_replies = not isinstance(source, SessionsSource) or source.history == "reply"

    def ready(what: list[WorkloadRequest], phase: str) -> list[PreparedRequest]:
        measured = phase == "measure"
        return prepare(
            what,
            model=facts.model,
            endpoint=spec.endpoint,
            features=features,
            phase=phase,
            id_prefix=f"{prefix}{phase[0]}",
            extra_body=spec.extra_body,
            keep_replies=keep_replies,
            cancel_after_ns=hang_ups(what, spec) if measured else None,
        )

    concurrency = spec.max_concurrency or spec.workload.arrivals.max_concurrency
    plan = LoadPlan(
        requests=ready(requests, "measure"),
        url=url,
        max_concurrency=concurrency,
        max_seconds=spec.max_seconds,
        grace_s=spec.grace_s,
        deadlines=spec.deadlines,
        retries=spec.retries,
    )
    chosen = [r for r in others if r is not shortest][: spec.warmup_requests]
    warmup = replace(plan, requests=ready(chosen, "warmup"), max_seconds=None, phase="warm-up")
    return warmup, plan, features, built.notes


def _unseen(_now: BenchProgress) -> None:
    """Where nobody looks."""


def _warmup_requests(spec: BenchSpec, nonce: str, sizes: dict[str, Any]) -> list[WorkloadRequest]:
    """Requests like the measured ones, with other lengths and content, all at once; openings of sessions
    only."""
    burst = spec.workload.model_copy(update={"arrivals": Arrivals(kind="burst")})
    others = build(
        burst,
        seed=spec.seed + _WARMUP_SEED,
        nonce=f"{nonce}/warmup",
        num_requests=spec.warmup_requests + 1,
        **sizes,
    )
    return [replace(r, session=None) for r in others if r.turn == 0]


def hang_ups(requests: list[WorkloadRequest], spec: BenchSpec) -> dict[int, int]:
    """Index → ns after sending at which the client hangs up: an exact share of the requests, drawn by the
    seed."""
    count = round(spec.cancellation_rate * len(requests))
    if not count:
        return {}
    rng = np.random.default_rng([spec.seed, _HANG_UP_STREAM])
    chosen = rng.choice(len(requests), size=count, replace=False)
    return {requests[i].index: round(spec.cancellation_delay_s * 1e9) for i in chosen.tolist()}


def _headers(spec: BenchSpec) -> dict[str, str]:
    headers = dict(spec.headers)
    if spec.api_key:
        headers["Authorization"] = f"Bearer {spec.api_key}"
    return headers


def _raise_file_limit() -> None:
    """Every request in flight needs a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
