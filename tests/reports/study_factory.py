"""Writes what capacity searches, gates, A/A tests and diagnoses leave in a run store."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, Literal

from experiments.capacity.models import CapacityResult, CapacitySpec, RateRun
from experiments.diagnosis.models import FINDINGS, Check, Diagnosis, Effect, Evidence, Family, Finding, Rival
from experiments.gate.decision import Rule, decide
from experiments.gate.models import EXIT_CODES, GateResult, GateVerdict, Side, Tier
from experiments.gate.models import Finding as Compared
from experiments.gate.selftest import MetricNoise, SelfTest
from experiments.gate.tier2 import METRICS

MACHINE = {"cpu": "Example CPU", "cores": 2, "python": "3.11.7", "torch": "2.15.0"}
Answer = Literal["rate", "below the lowest tried", "above the highest tried", "unknown"]


def write_capacity(
    root: Path,
    name: str = "capacity-demo",
    *,
    answer: Answer = "rate",
    status: str = "complete",
    runs: list[str | None] | None = None,
    slo: str = "ttft:600 itl:100",
) -> CapacityResult:
    """A search around 4 requests/s; ``runs``: ids of the runs behind its probes."""
    spec = CapacitySpec(
        slo=slo, target_ratio=0.9, lowest=None, highest=None, tolerance=0.05, seconds=20.0, max_runs=30,
        budget_s=None, workload="chat", workload_spec={}, seed=1, model="smollm2-135m",
    )  # fmt: skip
    rates = [(5.0, 0.42), (3.0, 0.98), (4.2, 0.86), (3.8, 0.93), (4.0, 0.91)]
    ids: list[str | None] = runs if runs is not None else [None] * len(rates)
    probes = [
        RateRun(
            rate=rate, seed=i, state="PASSED" if ratio >= 0.9 else "MISSED", run=run, good=round(100 * ratio),
            offered=100, ratio=ratio, stable=ratio > 0.5, reason="" if ratio > 0.5 else "still growing",
        )
        for i, ((rate, ratio), run) in enumerate(zip(rates, ids, strict=False))
    ]  # fmt: skip
    probes.append(RateRun(rate=4.1, seed=9, state="VOID", reason="the client was late"))
    known = answer == "rate"
    result = CapacityResult(
        id=name, created="2026-11-29T10:00:00Z", status=status, answer=answer, rate=4.05 if known else None,
        low=3.84 if known else None, high=4.28 if known else None, text="", lowest=0.5, highest=12.0,
        spec=spec, runs=probes, machine=MACHINE, seconds=120.0,
    )  # fmt: skip
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "capacity.json").write_text(result.model_dump_json())
    return result


def _side(name: str, revision: str) -> Side:
    return Side(name=name, revision=revision, commit=(revision * 8)[:40], folder="/tree", python="python")


def write_gate(
    root: Path,
    name: str,
    *,
    slower: float = 0.0,
    day: int = 1,
    reason: str = "",
    unusable: bool = False,
) -> GateResult:
    """A gate whose head is ``slower`` (0.2: 20 %) on every metric, judged by the gate's own rule."""
    rng = random.Random(name)
    pairs: list[dict[str, Any]] = []
    for index in range(12):
        base = {"ttft_ms": 80.0, "itl_ms": 9.0, "output_tok_s": 240.0}
        noise = {metric: 1 + rng.uniform(-0.02, 0.02) for metric in METRICS}
        change = {
            m: (1 + slower) * noise[m] if s > 0 else noise[m] / (1 + slower) for m, s in METRICS.items()
        }
        pairs.append(
            {
                "index": index, "first": "base" if index % 2 else "head", "base": base,
                "head": {m: base[m] * change[m] for m in METRICS}, "ratio": change,
                "base_control_ms": [1.0, 1.0], "head_control_ms": [1.0, 1.0], "usable": index not in (3, 7),
            }
        )  # fmt: skip
    used = [pair for pair in pairs if pair["usable"]]
    logs = {m: [s * math.log(p["ratio"][m]) for p in used] for m, s in METRICS.items()}
    verdict, findings = decide(logs, Rule())
    findings = [f.model_copy(update={"base": 80.0, "head": 80.0 * (f.ratio or 1)}) for f in findings]
    if unusable:
        verdict, findings = GateVerdict.UNUSABLE, []
    tiers = [
        Tier(
            tier=0,
            verdict=GateVerdict.PASS,
            reason="12 outputs identical",
            findings=[Compared(name="greedy/0", verdict=GateVerdict.PASS, text="identical")],
        ),
        Tier(tier=1, verdict=GateVerdict.SKIPPED, reason="not asked for"),
        Tier(
            tier=2,
            verdict=verdict,
            reason=reason or f"{len(used)} pairs",
            findings=findings,
            details={"pairs": pairs, "usable_pairs": len(used)},
        ),
    ]
    result = GateResult(
        created=f"2026-11-{day:02d}T10:00:00Z", base=_side("base", "abc1234"), head=_side("head", "def5678"),
        verdict=verdict, exit_code=EXIT_CODES[verdict], reason=f"tier 2: {reason or 'as measured'}",
        tiers=tiers, machine=MACHINE, tool_version="0.1.0", command=["workbench", "gate"], seconds=300.0,
    )  # fmt: skip
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "gate.json").write_text(result.model_dump_json())
    return result


def write_self_test(root: Path, name: str = "gate-aa") -> SelfTest:
    rng = random.Random(5)
    runs = [
        {m: v * (1 + rng.uniform(-0.03, 0.03)) for m, v in (("ttft_ms", 80.0), ("itl_ms", 9.0))}
        for _ in range(40)
    ]
    result = SelfTest(
        created="2026-11-20T10:00:00Z", folder="/tree", pairs=20, usable_pairs=18,
        metrics=[
            MetricNoise(name=m, run_sd=0.02, pair_sd=0.025, autocorrelation=0.1, drift=0.004, spikes=0.0,
                        detectable={10: 0.09, 20: 0.06})
            for m in ("ttft_ms", "itl_ms")
        ],
        false_alarm_rate=0.0005, false_alarm_upper=0.0021, caught_ten_percent=0.97, looks=[10, 20, 30],
        runs=runs, machine=MACHINE,
    )  # fmt: skip
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "aa.json").write_text(result.model_dump_json())
    return result


def write_findings(
    folder: Path, *, claim: str = "max_num_seqs keeps requests waiting", steps: int = 3
) -> None:
    """One finding with evidence that points at steps and requests, and an abstention."""
    found = Diagnosis(
        run=folder.name,
        checks=[Check(name="joined", ok=True, value=1.0, text="every request is joined to its events")],
        findings=[
            Finding(
                family=Family.QUEUEING,
                verdict="finding",
                cause="max_num_seqs",
                claim=claim,
                effect=Effect(name="waiting", value=420.0, unit="ms", share=0.4),
                evidence=[
                    Evidence(text="12 steps stopped admission there", table="steps", rows=list(range(steps))),
                    Evidence(text="it waited longest", table="requests", rows=["req-0003"]),
                ],
                rivals=[Rival(name="KV blocks", ruled_out=True, why="never fewer than 40 were free")],
                confidence="high",
                next="workbench sweep --param max_num_seqs --values 8,16,32",
            ),
            Finding(family=Family.PREEMPTION, verdict="abstain", claim="no preemption in this run"),
        ],
    )
    (folder / FINDINGS).write_text(found.model_dump_json())
