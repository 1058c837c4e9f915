"""Family 5: preemption and recompute. Is the KV pool too small for what runs at the same time?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.checks import Vetting
from experiments.diagnosis.models import Confidence, Effect, Evidence, Family, Finding, Rival, abstain
from experiments.diagnosis.next_step import doublings, sweep_line
from workbench.timeline.segments import PREEMPTED, RECOMPUTE

FAMILY = Family.PREEMPTION
MIN_SHARE = 0.05
"""Of all requests' time spent preempted or recomputing, or of prefilled tokens computed twice."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What preemption cost."""

    time_share: float
    recompute_share: float
    """Of the tokens that prefills computed."""
    preemptions: int
    victims: int
    repeats: int
    worst: int
    lost_tokens: int
    recomputed_tokens: int
    victim_ids: list[str]
    kv_use: float
    """Of the pool, in steps that preempted."""
    step_ids: list[int]


def measure_toll(bundle: RunBundle) -> Toll:
    """Sum over the measured requests that the trace tells about."""
    traced, steps = bundle.traced, bundle.steps
    total = sum(one.e2el_ns for one in traced)
    lost_ns = sum((one.parts or {}).get(PREEMPTED, 0) + (one.parts or {}).get(RECOMPUTE, 0) for one in traced)
    victims = [one for one in traced if one.life is not None and one.life.num_preemptions]
    counts = [one.life.num_preemptions for one in victims if one.life is not None]
    again = sum(life.recomputed_tokens for life in bundle.lives)
    prefilled = float(steps["prefill_tokens"].sum())
    preempting = steps["num_preempted"] > 0
    used, pool = steps["kv_used"], steps["kv_used"] + steps["kv_free"] + steps["kv_cached"]
    use = float((used[preempting] / np.maximum(pool[preempting], 1.0)).mean()) if preempting.any() else 0.0
    worst = sorted(victims, key=lambda one: -(one.life.num_preemptions if one.life else 0))
    return Toll(
        time_share=lost_ns / total if total else 0.0,
        recompute_share=again / prefilled if prefilled else 0.0,
        preemptions=sum(counts),
        victims=len(victims),
        repeats=sum(count > 1 for count in counts),
        worst=max(counts, default=0),
        lost_tokens=sum(life.lost_tokens for life in bundle.lives),
        recomputed_tokens=again,
        victim_ids=[one.request_id for one in worst[:20]],
        kv_use=use,
        step_ids=[int(i) for i in steps.ids[preempting][:20]],
    )


def diagnose_preemption(bundle: RunBundle, vetting: Vetting) -> Finding:
    """Verdict of the family."""
    if vetting.no_trace:
        return abstain(FAMILY, vetting.no_trace)
    leaked = _leaked_blocks(bundle)
    toll = measure_toll(bundle)
    if not toll.preemptions:
        return abstain(FAMILY, "no request was preempted")
    if max(toll.time_share, toll.recompute_share) < MIN_SHARE:
        return abstain(
            FAMILY,
            f"preemption is rare: {toll.preemptions} in {len(bundle.traced)} requests, "
            f"{toll.time_share:.1%} of their time",
        )
    pool = float(np.median(bundle.steps["kv_used"] + bundle.steps["kv_free"] + bundle.steps["kv_cached"]))
    giant = _giant(bundle, pool)
    sharing = _sharing_missed(bundle)
    cause = "leaked_blocks" if leaked > 0.2 * pool else "sharing_off" if sharing else "kv_blocks"
    fits = _capacity(bundle, pool)
    reason = {
        "leaked_blocks": f"{leaked:.0f} of {pool:.0f} KV blocks are held by no request",
        "sharing_off": f"prompts share {sharing:.0%} of their tokens and the prefix cache is off",
        "kv_blocks": f"the pool of {pool:.0f} KV blocks holds about {fits:.1f} whole requests",
    }[cause]
    confidence: Confidence = "high" if toll.time_share >= 0.1 and toll.preemptions >= 5 else "medium"
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause=cause,
        claim=f"Preemption costs {toll.time_share:.0%} of all requests' time and "
        f"{toll.recompute_share:.0%} of the prefill: "
        f"{reason}.",
        effect=Effect(
            name="preempted or recomputing",
            value=float(toll.lost_tokens),
            unit="computed tokens lost",
            share=toll.time_share,
        ),
        evidence=_evidence(toll, bundle, fits),
        rivals=[
            Rival(
                name="leaked blocks",
                ruled_out=leaked <= 0.2 * pool,
                why=f"{leaked:.0f} blocks are held beyond what the requests in flight need",
            ),
            Rival(
                name="one giant request",
                ruled_out=giant < 0.5,
                why=f"the largest request needs {giant:.0%} of the pool",
            ),
            Rival(
                name="sharing missed",
                ruled_out=not sharing,
                why="the prefix cache is on"
                if bundle.setting("enable_prefix_caching", False)
                else "the workload's prompts share nothing"
                if not sharing
                else "the prefix cache is off",
            ),
        ],
        confidence=confidence,
        next=_next(cause, bundle, fits, pool),
    )


def _evidence(toll: Toll, bundle: RunBundle, fits: float) -> list[Evidence]:
    victims: list[int | str] = list(toll.victim_ids)
    rows: list[int | str] = list(toll.step_ids)
    running = bundle.steps["num_running"]
    return [
        Evidence(
            text=f"{toll.preemptions} preemptions of {toll.victims} requests, {toll.repeats} of them "
            "more than once "
            f"(at most {toll.worst} times)",
            value=float(toll.preemptions),
            unit="preemptions",
            table="requests",
            rows=victims,
        ),
        Evidence(
            text=f"{toll.lost_tokens} computed tokens lost, {toll.recomputed_tokens} computed again "
            f"({toll.recompute_share:.0%} of the prefill)",
            value=toll.recompute_share,
            unit="share",
        ),
        Evidence(
            text=f"{toll.kv_use:.0%} of the pool is in use when it happens",
            value=toll.kv_use,
            unit="share",
            table="steps",
            rows=rows,
        ),
        Evidence(
            text=f"{float(np.quantile(running, 0.9)):.0f} requests run at the same time (p90); the "
            "pool holds "
            f"about {fits:.1f} at their full length",
            value=fits,
            unit="requests",
        ),
    ]


def _capacity(bundle: RunBundle, pool: float) -> float:
    """Whole requests that fit: blocks over the mean blocks of a finished request."""
    size = int(bundle.setting("block_size", 16))
    needs = [-(-((s.prompt_tokens or 0) + (s.output_tokens or 0)) // size) for s in bundle.traced]
    mean = float(np.mean(needs)) if needs else 0.0
    return pool / mean if mean else 0.0


def _giant(bundle: RunBundle, pool: float) -> float:
    size = int(bundle.setting("block_size", 16))
    most = max(((s.prompt_tokens or 0) + (s.output_tokens or 0) for s in bundle.splits), default=0)
    return -(-most // size) / pool if pool else 0.0


def _leaked_blocks(bundle: RunBundle) -> float:
    """Blocks in use beyond what the running requests can need, at the quietest end of the run: the least over
    the last steps.
    """
    steps = bundle.steps
    size = int(bundle.setting("block_size", 16))
    live = (steps["prefill_sum_sk"] + steps["decode_sum_sk"]) / size + 2 * steps["num_running"]
    whole = steps["num_prefill_reqs"] + steps["num_decode_reqs"] >= steps["num_running"]
    excess = (steps["kv_used"] - live)[whole][-20:]
    return max(0.0, float(excess.min())) if len(excess) else 0.0


def _sharing_missed(bundle: RunBundle) -> float:
    """Share of the prompt tokens that are common prefixes, when the cache is off; 0 otherwise."""
    if bundle.setting("enable_prefix_caching", True):
        return 0.0
    shared = total = 0.0
    for one in bundle.manifest.workload.get("classes", ()):
        lengths = one.get("input_tokens", {})
        mean = (
            lengths.get("value")
            or lengths.get("mean")
            or (lengths.get("low", 0) + lengths.get("high", 0)) / 2
        )
        shared += one.get("weight", 1.0) * one.get("prefix_tokens", 0)
        total += one.get("weight", 1.0) * mean
    share = shared / total if total else 0.0
    return share if share >= 0.2 else 0.0


def _next(cause: str, bundle: RunBundle, fits: float, pool: float) -> str:
    if cause == "sharing_off":
        return sweep_line(bundle, "enable_prefix_caching", [False, True], "output_tok_s")
    if cause == "leaked_blocks":
        now = bool(bundle.setting("enable_prefix_caching", True))
        return sweep_line(bundle, "enable_prefix_caching", [now, not now], "output_tok_s")
    if bundle.setting("num_gpu_blocks_override"):
        return sweep_line(
            bundle,
            "num_gpu_blocks_override",
            doublings(int(pool) + 1),
            "goodput_ratio" if bundle.manifest.slo else "e2el_p99",
        )
    seqs = int(bundle.setting("max_num_seqs", 128))
    levels = [seqs, *(n for n in (max(1, int(fits)), max(1, int(fits) // 2)) if n < seqs)]
    return sweep_line(bundle, "max_num_seqs", list(dict.fromkeys(levels)), "e2el_p99")
