"""Builds a ``SweepResult`` from a measuring function, with intervals from the blocks (normal approximation:
enough to draw).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

from experiments.models import (
    Boundary,
    Cell,
    Confirmation,
    Drift,
    Equivalence,
    Expectation,
    Level,
    Ratio,
    SweepResult,
    Verdict,
)

METRICS = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2el_p50", "output_tok_s", "goodput_ratio")
LOWER = {"output_tok_s": False, "goodput_ratio": False}


def flat(metrics: dict[str, Any]) -> dict[str, float | None]:
    """The flat names a sweep stores."""
    found: dict[str, float | None] = {}
    for name in ("ttft", "itl", "e2el"):
        for p in ("p50", "p99"):
            found[f"{name}_{p}"] = metrics["latency"][name][p]
    found["output_tok_s"] = metrics["throughput"]["output_tok_s"]
    found["goodput_ratio"] = metrics["goodput"]["ratio"]
    return found


def _ratio(logs: list[float], lower_is_better: bool, delta: float) -> Ratio:
    if len(logs) < 2:
        return Ratio(
            point=None,
            low=None,
            high=None,
            n_blocks=len(logs),
            verdict=Verdict.INCONCLUSIVE,
            reason="fewer than 2 blocks",
        )
    mean, half = statistics.fmean(logs), 3.18 * statistics.stdev(logs) / math.sqrt(len(logs)) + 1e-6
    low, point, high = (math.exp(x) for x in (mean - half, mean, mean + half))
    if 1 / (1 + delta) < low and high < 1 + delta:
        verdict = Verdict.EQUIVALENT
    elif low > 1 or high < 1:
        verdict = Verdict.BETTER if (high < 1) is lower_is_better else Verdict.WORSE
    else:
        verdict = Verdict.INCONCLUSIVE
    return Ratio(point=point, low=low, high=high, n_blocks=len(logs), verdict=verdict)


def sweep_result(
    sweep_id: str,
    run: Callable[[Cell], dict[str, Any]],
    blocks: int = 4,
    levels: tuple[int, ...] = (64, 128, 256, 512, 1024),
    baseline: int = 256,
    model: str = "smollm2-135m",
    status: str = "complete",
) -> SweepResult:
    """Play every cell with ``run`` (metrics out) and fold the outcome as the sweeper does."""
    cells: list[Cell] = []
    for block in range(blocks):
        order: list[tuple[int, int | None]] = [(v, None) for v in levels if v != baseline] + [
            (baseline, 0),
            (baseline, 1),
        ]
        random.Random(block).shuffle(order)
        for position, (value, copy) in enumerate(order):
            cell = Cell(
                block=block,
                position=position,
                level=value,
                baseline_copy=copy,
                seed=100 + block,
                state="DONE",
                run=f"{sweep_id}-b{block}p{position}",
                output_sha256="cd" * 32,
            )
            cells.append(cell.model_copy(update={"metrics": flat(run(cell))}))

    def logs(metric: str, pick: Callable[[Cell], bool]) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for c in cells:
            value = c.metrics.get(metric)
            if pick(c) and value:
                found.setdefault(c.block, []).append(math.log(value))
        return {b: statistics.fmean(v) for b, v in found.items()}

    made = []
    for value in levels:
        mine = [c for c in cells if c.level == value]
        ratios = {}
        for metric in METRICS:
            base = logs(metric, lambda c: c.level == baseline)
            own = logs(metric, lambda c, v=value: c.level == v)
            ratios[metric] = _ratio(
                [own[b] - base[b] for b in own if b in base], LOWER.get(metric, True), 0.05
            )
            if value == baseline:
                ratios[metric] = Ratio(
                    point=1.0, low=1.0, high=1.0, n_blocks=blocks, verdict=Verdict.BASELINE
                )
        medians = {
            m: statistics.median([c.metrics[m] for c in mine if c.metrics[m] is not None] or [math.nan])
            for m in METRICS
        }
        made.append(
            Level(
                value=value,
                runs=[c.run for c in mine if c.run],
                medians={m: None if math.isnan(v) else v for m, v in medians.items()},
                ratio=ratios,
                verdict=ratios["itl_p99"].verdict,
            )
        )
    first = logs("itl_p99", lambda c: c.baseline_copy == 0)
    second = logs("itl_p99", lambda c: c.baseline_copy == 1)
    return SweepResult(
        id=sweep_id,
        created="2026-11-29T10:00:00+00:00",
        status=status,
        question="Which chunk_size serves short chats best while long documents arrive?",
        factor="chunk_size",
        field="max_num_batched_tokens",
        baseline=baseline,
        primary_metric="itl_p99",
        delta=0.05,
        alpha=0.05,
        slo="ttft:600 itl:100",
        workload={"name": "chat-and-documents", "rate": 5.5, "num_requests": 14},
        target={"kind": "builtin", "model": model},
        machine={
            "cpu": "Example CPU @ 2.9 GHz",
            "cores": 2,
            "memory_bytes": 8 * 2**30,
            "python": "3.11.7",
            "torch": "2.15.0",
        },
        hypothesis=[
            Expectation(
                metric="itl_p99",
                direction="up",
                text="Larger chunks make decodes wait longer",
                held=True,
                evidence="4 of 4 levels ordered",
            ),
            Expectation(
                metric="ttft_p50",
                direction="down",
                text="Larger chunks finish prompts in fewer steps",
                held=None,
                evidence="intervals overlap",
            ),
            Expectation(
                metric="output_tok_s",
                direction="up",
                text="Fewer steps, less overhead",
                held=False,
                evidence="throughput fell at 1024",
            ),
        ],
        levels=made,
        best=64,
        conclusion="chunk_size 64 cuts ITL p99 against the baseline 256; the gain costs time to first token.",
        cells=cells,
        aa=_ratio([second[b] - first[b] for b in first if b in second], True, 0.05),
        mde=0.031,
        equivalence=Equivalence(
            compared=14 * len(cells), identical=14 * len(cells), note="all outputs identical, token by token"
        ),
        valid=True,
        invalid_reasons=[],
        reproduce="workbench sweep --param chunk_size --levels 64,128,256,512,1024 --blocks 4 --seed 7",
        report=None,
        runs=[c.run for c in cells if c.run],
        factor_values=list(levels),
        engine={"max_num_seqs": 8, "block_size": 16, "num_gpu_blocks_override": 320},
        design={"seed": 7, "blocks": blocks, "elapsed_s": 412.0},
        calibration={"capacity": 8.1, "utilisation": 0.7, "request_rate": 5.5},
        confirmation=Confirmation(level=64, ratio=made[0].ratio, runs=["c0", "c1"], verdict=Verdict.BETTER),
        boundary=Boundary(
            tested=list(levels),
            better=[64, 128],
            equivalent=[],
            worse=[512, 1024],
            unknown=[],
            conditions={"request_rate": 5.5, "model": model, "machine": "2 cores"},
            text="The gain holds from 64 to 128 at 5.5 requests per second; beyond 256 it reverses.",
        ),
        drift=Drift(
            total=0.021, p_value=0.3, text="+2.1 % from first to last baseline run, p = 0.30: no drift seen"
        ),
    )
