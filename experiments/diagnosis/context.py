"""Family 3: decode gets slower as contexts grow. Is it bytes over bandwidth, or the kernel?"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.diagnosis.bundle import Floats, RunBundle
from experiments.diagnosis.checks import MIN_STEPS, Vetting
from experiments.diagnosis.decode_fit import DecodeFit, Jump, find_jump, fit_decode
from experiments.diagnosis.models import Effect, Evidence, Family, Finding, Rival, abstain
from experiments.diagnosis.next_step import forward_line, sweep_line

FAMILY = Family.CONTEXT_SCALING
MIN_SHARE = 0.25
"""Of the decode step that grows with context: less, and context is not what makes it slow."""
POOR_EFFICIENCY = 0.5
"""Bytes over bandwidth, divided by what was measured: below this the kernel is at fault."""
MIN_JUMP, JUMP_EXPLAINS = 0.2, 0.6
MAX_DRIFT = 0.15
MAX_COLLINEAR = 0.95
"""Correlation of batch and context from which the slope must be known well to be believed."""
MIN_SPREAD = 0.15
"""Relative spread of the context sums that a slope needs."""


def diagnose_context(bundle: RunBundle, vetting: Vetting) -> Finding:
    """Verdict of the family, from steps that only decode."""
    if vetting.no_trace:
        return abstain(FAMILY, vetting.no_trace)
    steps = bundle.steps
    chosen = bundle.measured_steps & (steps["prefill_tokens"] == 0) & (steps["num_decode_reqs"] > 0)
    if int(chosen.sum()) < MIN_STEPS:
        return abstain(
            FAMILY, f"insufficient load: {int(chosen.sum())} steps that only decode (need {MIN_STEPS})"
        )
    forward = steps["forward"][chosen]
    if bool(np.isnan(forward).any()):
        forward = steps.duration[chosen]
    batch, context = steps["num_decode_reqs"][chosen], steps["decode_sum_sk"][chosen]
    kept = forward <= np.quantile(forward, 0.98) * 2
    ids, forward, batch, context = steps.ids[chosen][kept], forward[kept], batch[kept], context[kept]
    clock = _clock_change(bundle)
    if context.std() < MIN_SPREAD * context.mean():
        return abstain(
            FAMILY, f"contexts hardly vary in this run; a grid tells their cost: {forward_line(bundle)}"
        )
    fit, jump = fit_decode(forward, batch, context), find_jump(forward, batch, context)
    evidence = _evidence(fit, ids, forward, context)
    if jump is not None and jump.explained >= JUMP_EXPLAINS and abs(jump.share) >= MIN_JUMP:
        return _path_break(bundle, fit, jump, evidence)
    if clock is not None and clock < -0.1 and abs(fit.drift) > MAX_DRIFT / 2:
        return abstain(
            FAMILY,
            f"the clock fell by {-clock:.0%} during the run, so time and context can't be told apart",
            evidence,
        )
    if abs(fit.drift) > MAX_DRIFT and fit.context_share < MIN_SHARE + abs(fit.drift):
        return abstain(
            FAMILY,
            f"decode steps drift by {fit.drift:+.0%} over the run whatever the context: look at "
            "clocks and neighbours",
            evidence,
        )
    if abs(fit.collinear) > MAX_COLLINEAR and fit.low < 0.5 * fit.per_token:
        return abstain(
            FAMILY,
            "batch and context grew together, so their costs can't be told apart; a grid can: "
            f"{forward_line(bundle)}",
            evidence,
        )
    if fit.low <= 0 or fit.context_share < MIN_SHARE:
        return abstain(
            FAMILY,
            f"context is {max(0.0, fit.context_share):.0%} of a decode step: not what makes it slow",
            evidence,
        )
    return _slope(bundle, fit, evidence, clock)


def _slope(bundle: RunBundle, fit: DecodeFit, evidence: list[Evidence], clock: float | None) -> Finding:
    floor = _floor_ns(bundle)
    efficiency = floor / fit.per_token if floor is not None else None
    if efficiency is not None:
        text = (
            f"its bytes at the machine's measured bandwidth would take {floor:.3g} ns a token of context: "
            f"efficiency {efficiency:.2f}"
        )
        evidence = [*evidence, Evidence(text=text, value=efficiency, unit="ratio")]
        if efficiency >= POOR_EFFICIENCY:
            return abstain(
                FAMILY, f"context costs what its bytes cost (efficiency {efficiency:.2f}): no fault", evidence
            )
        lost = fit.context_share * (1.0 - min(1.0, efficiency))
    else:
        lost = fit.context_share
    if efficiency is None and fit.context_share < 0.5:
        return abstain(
            FAMILY,
            f"context is {fit.context_share:.0%} of a decode step, and without the machine's "
            "bandwidth nothing says that this is too much",
            evidence,
        )
    words = (
        f"which takes {1 / efficiency:.1f} times as long as its bytes need"
        if efficiency
        else "and no bandwidth is known to hold that against"
    )
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause="attention_kernel" if efficiency is not None else "kv_reads",
        claim=f"Decode slows down with context: {fit.context_share:.0%} of a decode step is reading "
        f"KV, {words}.",
        effect=Effect(
            name="decode time that grows with context",
            value=fit.per_token,
            unit="ns a token of context",
            share=lost * _decode_share(bundle),
        ),
        evidence=evidence,
        rivals=_rivals(fit, clock),
        confidence="high"
        if efficiency is not None and fit.low > 0.8 * fit.per_token
        else "medium"
        if efficiency is not None
        else "low",
        next=_next(bundle),
    )


def _path_break(bundle: RunBundle, fit: DecodeFit, jump: Jump, evidence: list[Evidence]) -> Finding:
    text = (
        f"a leap of {jump.share:+.0%} of the mean step at {jump.what} {jump.at:.0f} explains "
        f"{jump.explained:.0%} of the residuals"
    )
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause="kernel_path_break",
        claim=f"Decode steps leap by {jump.share:+.0%} at {jump.what} {jump.at:.0f}: another kernel "
        "path or padding, "
        "not a slope.",
        effect=Effect(
            name="leap",
            value=jump.share,
            unit="share of a decode step",
            share=abs(jump.share) * _decode_share(bundle),
        ),
        evidence=[*evidence, Evidence(text=text, value=jump.share, unit="share")],
        rivals=[
            Rival(name="slope of context", ruled_out=True, why="a line in batch and context leaves the leap"),
            Rival(
                name="prefill mixed in", ruled_out=True, why="only steps without prefill tokens are looked at"
            ),
        ],
        confidence="high" if jump.explained >= 0.8 else "medium",
        next=_next(bundle),
    )


def _evidence(fit: DecodeFit, ids: Any, forward: Floats, context: Floats) -> list[Evidence]:
    line = (
        f"decode step = {fit.fixed / 1e6:.2f} ms + {fit.per_request / 1e3:.1f} µs · batch + "
        f"{fit.per_token:.3g} ns (95 % interval {fit.low:.3g} to {fit.high:.3g}) · Σ context, fitted to "
        f"{len(forward)} steps"
    )
    longest = np.argsort(-context)[:10]
    rows: list[int | str] = [int(i) for i in ids[longest]]
    return [Evidence(text=line, value=fit.per_token, unit="ns", table="steps", rows=rows)]


def _rivals(fit: DecodeFit, clock: float | None) -> list[Rival]:
    return [
        Rival(
            name="batch grew",
            ruled_out=True,
            why=f"batch has its own term ({fit.per_request / 1e3:.1f} µs a request); "
            f"it and context correlate by {fit.collinear:.2f}",
        ),
        Rival(name="prefill mixed in", ruled_out=True, why="only steps without prefill tokens are looked at"),
        Rival(
            name="clock or thermal",
            ruled_out=abs(fit.drift) <= MAX_DRIFT / 2 if clock is None else clock > -0.1,
            why=f"no clock samples, but steps of one kind changed by {fit.drift:+.1%} over the run"
            if clock is None
            else f"the clock moved by {clock:+.1%}",
        ),
        Rival(
            name="drift",
            ruled_out=abs(fit.drift) <= MAX_DRIFT,
            why=f"{fit.drift:+.1%} of a step over the run",
        ),
    ]


def _floor_ns(bundle: RunBundle) -> float | None:
    """Bytes of KV of one token over the measured bandwidth; None when either is unknown."""
    blocks, size = bundle.setting("num_kv_blocks"), bundle.setting("block_size")
    total = bundle.setting("kv_cache_bytes")
    bandwidth = bundle.manifest.machine.get("memory_read_gb_s")
    if not (blocks and size and total and bandwidth):
        return None
    return float(total) / (float(blocks) * float(size)) / float(bandwidth)


def _clock_change(bundle: RunBundle) -> float | None:
    """Relative change of the clock from the first to the last quarter of the run."""
    for name in ("gpu.clock_sm", "system.cpu_freq"):
        values = bundle.samples(name)
        if len(values) >= 8:
            quarter = len(values) // 4
            first, last = float(values[:quarter].mean()), float(values[-quarter:].mean())
            return last / first - 1.0 if first else None
    return None


def _decode_share(bundle: RunBundle) -> float:
    total = sum(one.e2el_ns for one in bundle.traced)
    decode = sum((one.parts or {}).get("decode", 0) for one in bundle.traced)
    return decode / total if total else 1.0


def _next(bundle: RunBundle) -> str:
    now = str(bundle.setting("attention_backend", "auto"))
    return sweep_line(
        bundle, "attention_backend", [now, "reference" if now != "reference" else "cpu"], "itl_p50"
    )
