"""Family 1: fast when alone, slow first token under load. What do the slowest requests wait for?"""

from __future__ import annotations

import numpy as np

from engine.trace.records import AdmissionStop
from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.checks import Vetting
from experiments.diagnosis.models import Confidence, Effect, Evidence, Family, Finding, Rival, abstain
from experiments.diagnosis.next_step import doublings, sweep_line
from experiments.diagnosis.step_model import StepModel, fit_step_model
from experiments.diagnosis.waits import Waits, measure_waits, share_of_all
from workbench.slo import parse_slo
from workbench.timeline.split import FRONT_END

FAMILY = Family.QUEUEING
WAIT_SHARE = 0.5
"""Of the way to the first token: less, and the first token is slow for what it computes."""
SLOW_RATIO = 3.0
"""Times what the request would take alone, where the run has no objective to hold it against."""
MIN_FIXED = 0.2
"""Share of the fixed part in the steps that refuse, below which a larger limit can't help: the machine is
full."""
OVERLOADED = 1.5
"""Requests sent over requests served."""
LIMITS = ("token_budget", "max_num_seqs", "kv_blocks", "long_prefill_cap")


def diagnose_queueing(bundle: RunBundle, vetting: Vetting) -> Finding:
    """Verdict of the family."""
    if vetting.no_trace:
        return abstain(FAMILY, vetting.no_trace)
    model = fit_step_model(bundle)
    if len(bundle.answered) < 5 or model is None:
        return abstain(FAMILY, "insufficient load: too few requests got a first token")
    waits = measure_waits(bundle, model)
    if waits.held_back + waits.client_lag > WAIT_SHARE * waits.total:
        return abstain(FAMILY, _client_words(waits, bundle))
    if waits.front_end > WAIT_SHARE * waits.total and _is_slow(waits, bundle, waits.front_end):
        return _front_end(waits, bundle)
    if vetting.no_load:
        return abstain(FAMILY, vetting.no_load)
    share = waits.blocked / waits.total if waits.total else 0.0
    if share < WAIT_SHARE or not _is_slow(waits, bundle, waits.blocked):
        return abstain(
            FAMILY,
            f"first tokens are not held up: the slowest requests spend {share:.0%} of their "
            "way to the first token waiting for others",
        )
    if waits.preempted > waits.blocked:
        return abstain(FAMILY, "first tokens are held up by preemption, see that family")
    return _blocked(waits, bundle, model, share)


def _is_slow(waits: Waits, bundle: RunBundle, blocked: float) -> bool:
    """Does it miss the run's objective; without one, is it several times what it is alone?"""
    bounds = dict(parse_slo(bundle.manifest.slo).bounds) if bundle.manifest.slo else {}
    limit_ms = bounds.get("ttft", bounds.get("ttft_sched"))
    mean_ns = waits.total / len(waits.cohort)
    if limit_ms is not None:
        return mean_ns > limit_ms * 1e6
    return waits.total > SLOW_RATIO * max(waits.total - blocked, 0.0)


def _blocked(waits: Waits, bundle: RunBundle, model: StepModel, share: float) -> Finding:
    refused = sum(waits.refused.values())
    stop, stop_ns = max(waits.refused.items(), key=lambda item: item[1], default=("", 0.0))
    long_blocked = waits.long_share * refused + waits.behind_long
    if long_blocked > 0.5 * waits.blocked:
        cause = "long_prefill"
    elif stop in LIMITS and refused >= 0.5 * waits.blocked:
        cause = stop
    else:
        cause = "token_budget" if _budget_bound(bundle) else "shared_prefill"
    fixed = model.fixed_share(waits.refused_cost_ns)
    growing = _queue_grows(bundle)
    if cause != "long_prefill" and fixed < MIN_FIXED:
        return abstain(FAMILY, _full_words(growing, fixed, bundle))
    rivals = [
        _rival(
            "front end", waits.front_end, waits, "of their way to the first token before the engine's queue"
        ),
        _rival("client", waits.client_lag, waits, "of it lies before the client sent the request"),
        Rival(
            name="machine full",
            ruled_out=True,
            why=f"{fixed:.0%} of a step is paid once, not per token: more work in one step is cheaper"
            if cause != "long_prefill"
            else "the tokens in their way belong to few long prompts",
        ),
        Rival(
            name="overload",
            ruled_out=not growing,
            why="the queue does not grow through the run"
            if not growing
            else "the queue also grows through the run: at this rate it is not stable",
        ),
        Rival(
            name="preemption",
            ruled_out=waits.preempted < 0.1 * waits.total,
            why=f"for {waits.preempted / waits.total:.0%} of it they are preempted or recomputing",
        ),
    ]
    strong = share >= 0.7 and stop_ns >= 0.6 * max(refused, 1.0) and len(bundle.answered) >= 20
    confidence: Confidence = "high" if strong and not growing else "medium" if share >= 0.6 else "low"
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause=cause,
        claim=_claim(cause, share, bundle),
        effect=Effect(
            name="waiting before the first token, slowest requests",
            value=waits.blocked / len(waits.cohort) / 1e6,
            unit="ms",
            share=share_of_all(bundle, model),
        ),
        evidence=_evidence(waits, share, fixed),
        rivals=rivals,
        confidence=confidence,
        next=_next(cause, bundle),
    )


def _evidence(waits: Waits, share: float, fixed: float) -> list[Evidence]:
    ids: list[int | str] = [one.request_id for one in waits.cohort[:20]]
    found = [
        Evidence(
            text=f"the slowest {len(waits.cohort)} requests wait {share:.0%} of their way to the first token",
            value=share,
            unit="share",
            table="requests",
            rows=ids,
        )
    ]
    rows: list[int | str] = list(waits.refused_rows)
    for stop, ns in sorted(waits.refused.items(), key=lambda item: -item[1]):
        why = "a preemption in the same step" if stop == AdmissionStop.PREEMPTED else stop
        text = f"for {ns / waits.total:.0%} of it the scheduler admitted nobody because of {why}"
        found.append(Evidence(text=text, value=ns / waits.total, unit="share", table="steps", rows=rows))
    for text, ns in (
        ("between own chunks", waits.chunk_gap),
        ("in own prefill steps, for other requests' tokens", waits.others),
        ("behind a step of a long prompt", waits.behind_long),
    ):
        if ns > 0.01 * waits.total:
            found.append(
                Evidence(text=f"{ns / waits.total:.0%} of it {text}", value=ns / waits.total, unit="share")
            )
    if waits.long_share > 0.01:
        text = f"long prompts took {waits.long_share:.0%} of the tokens computed meanwhile"
        found.append(Evidence(text=text, value=waits.long_share, unit="share"))
    text = f"{fixed:.0%} of the time of those steps is fixed: it does not grow with what they compute"
    found.append(Evidence(text=text, value=fixed, unit="share"))
    return found


def _rival(name: str, ns: float, waits: Waits, words: str) -> Rival:
    share = ns / waits.total if waits.total else 0.0
    return Rival(name=name, ruled_out=share < 0.25, why=f"{share:.0%} {words}")


def _claim(cause: str, share: float, bundle: RunBundle) -> str:
    budget, seqs = bundle.setting("max_num_batched_tokens"), bundle.setting("max_num_seqs")
    reason = {
        "token_budget": f"the token budget of a step ({budget}) is used up",
        "max_num_seqs": "the only place in the running batch is taken"
        if seqs == 1
        else f"all {seqs} places in the running batch are taken",
        "kv_blocks": "no KV blocks are free for them",
        "long_prefill_cap": "the cap on prompts in the middle of their prefill holds them back",
        "long_prefill": "few long prompts take the steps",
        "shared_prefill": "their prefill steps compute other prompts too",
    }[cause]
    return (
        f"First tokens are slow under load: the slowest requests wait for {share:.0%} of their way to "
        f"the first token because {reason}."
    )


def _next(cause: str, bundle: RunBundle) -> str:
    budget = int(bundle.setting("max_num_batched_tokens", 2048))
    if cause == "max_num_seqs":
        return sweep_line(
            bundle, "max_num_seqs", doublings(int(bundle.setting("max_num_seqs", 128))), "ttft_p50"
        )
    if cause == "kv_blocks":
        blocks = bundle.setting("num_gpu_blocks_override") or bundle.setting("num_kv_blocks")
        return sweep_line(bundle, "num_gpu_blocks_override", doublings(int(blocks or 256)), "ttft_p50")
    if cause == "long_prefill":
        threshold = int(bundle.setting("long_prefill_token_threshold", 0))
        levels = [threshold, *(level for level in (budget // 8, budget // 4, budget // 2) if level > 0)]
        return sweep_line(bundle, "long_prefill_token_threshold", list(dict.fromkeys(levels)), "ttft_p50")
    if cause == "long_prefill_cap":
        cap = int(bundle.setting("max_num_partial_prefills", 1))
        return sweep_line(bundle, "max_num_partial_prefills", [*doublings(cap), "auto"], "ttft_p50")
    return sweep_line(bundle, "chunk_size", doublings(budget), "ttft_p50")


def _front_end(waits: Waits, bundle: RunBundle) -> Finding:
    share = waits.front_end / waits.total
    total = sum(one.e2el_ns for one in bundle.answered)
    interval = int(bundle.setting("stream_interval", 1))
    mean_ms = waits.front_end / len(waits.cohort) / 1e6
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause="front_end",
        claim="First tokens are slow before the engine's queue: the front end (HTTP, tokenising) "
        "holds the slowest "
        f"requests for {share:.0%} of the way.",
        effect=Effect(
            name="front end, slowest requests",
            value=mean_ms,
            unit="ms",
            share=min(share, sum((s.parts or {})[FRONT_END] for s in bundle.answered) / total),
        ),
        evidence=[
            Evidence(
                text=f"{mean_ms:.1f} ms from sending to the front end's hand-over",
                value=mean_ms,
                unit="ms",
                table="requests",
                rows=[s.request_id for s in waits.cohort[:20]],
            )
        ],
        rivals=[
            _rival("engine queue", waits.blocked, waits, "of the way is waiting inside the engine"),
            _rival("client", waits.client_lag, waits, "of it lies before the client sent the request"),
        ],
        confidence="high" if share >= 0.7 else "medium",
        next=sweep_line(bundle, "stream_interval", doublings(interval, 4), "ttft_p50"),
    )


def _client_words(waits: Waits, bundle: RunBundle) -> str:
    share = (waits.client_lag or waits.held_back) / waits.total
    if waits.held_back > 0.5 * waits.client_lag:
        cap = bundle.manifest.load.get("max_concurrency")
        return (
            f"the offered load was limited by the client: {share:.0%} of the slowest requests' way is "
            "waiting for "
            f"one of its own {cap or ''} slots; raise --max-concurrency before judging the server"
        )
    return f"the client itself was late: {share:.0%} of the slowest requests' way lies before they were sent"


def _full_words(growing: bool, fixed: float, bundle: RunBundle) -> str:
    sent, served = _rates(bundle)
    full = f"only {fixed:.0%} of a step's time is fixed, so steps that hold more would take as much longer"
    if growing or (sent > OVERLOADED * served and bundle.manifest.load.get("rate")):
        trend = ", and the queue grows through the run, so latency depends on its length" if growing else ""
        return (
            f"overload: {sent:.3g} requests a second were sent and {served:.3g} served{trend}; no limit is "
            f"to blame, the machine is full ({full}): lower the rate"
        )
    return f"first tokens wait because the machine is full, not because of a limit: {full}"


def _rates(bundle: RunBundle) -> tuple[float, float]:
    """Requests a second: sent, between the first and the last arrival; served, over the whole run."""
    sent = sorted(one.sent_ns - one.client_lag_ns for one in bundle.splits)
    begin, end = bundle.window
    arriving = (len(sent) - 1) / (sent[-1] - sent[0]) * 1e9 if len(sent) > 1 and sent[-1] > sent[0] else 0.0
    return arriving, len(sent) / (end - begin) * 1e9 if end > begin else 0.0


def _budget_bound(bundle: RunBundle) -> bool:
    budget = bundle.setting("max_num_batched_tokens")
    prefills = bundle.steps.tokens[bundle.measured_steps & (bundle.steps["prefill_tokens"] > 0)]
    return bool(budget and len(prefills) and np.mean(prefills >= 0.95 * float(budget)) >= 0.5)


def _queue_grows(bundle: RunBundle) -> bool:
    """Between the first and the last arrival: twice as many in the last third as in the first, and rising in
    the middle, too. A burst or a closed loop has no rate that could be too high.
    """
    arrivals = np.array(sorted(s.sent_ns for s in bundle.splits), np.int64)
    begin, end = bundle.window
    if len(arrivals) < 10 or arrivals[-1] - arrivals[0] < 0.2 * (end - begin) or _is_closed(bundle):
        return False
    moments = np.linspace(arrivals[0], arrivals[-1], 90).astype(np.int64)
    counts = bundle.in_flight.at(moments).astype(np.float64)
    thirds = [float(part.mean()) for part in np.split(counts, 3)]
    return thirds[2] > 2.0 * max(thirds[0], 1.0) and thirds[0] < thirds[1] < thirds[2]


def _is_closed(bundle: RunBundle) -> bool:
    return all(row["intended_ns"] is None for row in bundle.rows)
