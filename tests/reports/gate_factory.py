"""Writes a gate's folder as the gate would: one metric slower, one undecided, the other tiers equal."""

from __future__ import annotations

import math
import random
from pathlib import Path

from experiments.gate.models import Finding, GateResult, GateVerdict, Side, Tier
from tests.reports.store_factory import HOSTILE

_BASE = {"ttft_ms": 180.0, "itl_ms": 21.0, "output_tok_s": 310.0}
_WORSE = {"ttft_ms": 1.11, "itl_ms": 1.01, "output_tok_s": 1.0}


def gate_result(hostile: bool = False, pairs: int = 10) -> GateResult:
    """``hostile``: markup wherever a stranger could put text."""
    evil = HOSTILE if hostile else ""
    side = {name: Side(name=name, revision=f"{name}{evil}", commit="ab" * 20, folder="/src", python="python")
            for name in ("base", "head")}  # fmt: skip
    tiers = [
        Tier(tier=0, verdict=GateVerdict.PASS, reason=f"16 of 16 outputs identical{evil}"),
        Tier(
            tier=1,
            verdict=GateVerdict.PASS,
            reason="34 integers equal",
            findings=[
                Finding(
                    name=f"mixed/steps{evil}",
                    verdict=GateVerdict.PASS,
                    base=412.0,
                    head=412.0,
                    ratio=1.0,
                    text="identical",
                )
            ],
        ),
        _wall_clock(pairs, evil),
    ]
    return GateResult(
        created="2026-11-29T10:00:00+00:00", base=side["base"], head=side["head"], verdict=GateVerdict.FAIL,
        exit_code=1, reason=f"tier 2: ttft_ms slower, twice{evil}", tiers=tiers,
        machine={"cpu": f"Example CPU{evil}", "cores": 2, "python": "3.11.7", "torch": None},
        tool_version="0.1.0", command=["workbench", "gate", "--base", f"origin/main{evil}"], seconds=412.5,
    )  # fmt: skip


def _wall_clock(pairs: int, evil: str) -> Tier:
    rng = random.Random(3)
    rows = []
    for index in range(pairs):
        base = {name: value * rng.uniform(0.98, 1.02) for name, value in _BASE.items()}
        head = {n: v * (_WORSE[n] if n != "output_tok_s" else 1 / _WORSE[n]) * rng.uniform(0.98, 1.02)
                for n, v in base.items()}  # fmt: skip
        ratio = {name: head[name] / base[name] for name in base}
        rows.append({"index": index, "first": "base", "base": base, "head": head, "ratio": ratio,
                     "base_control_ms": [1.0], "head_control_ms": [1.0], "usable": index != 4})  # fmt: skip
    findings = [
        Finding(name="ttft_ms", verdict=GateVerdict.FAIL, base=180.0, head=199.8, ratio=1.11, low=1.09,
                high=1.13, p_slower=0.001, mde=0.02, text=f"slower by 11 %{evil}"),
        Finding(name="itl_ms", verdict=GateVerdict.INCONCLUSIVE, base=21.0, head=21.2, ratio=1.01, low=0.96,
                high=1.06, mde=0.04, text="can't tell"),
        Finding(name="output_tok_s", verdict=GateVerdict.PASS, base=310.0, head=310.0, ratio=1.0, low=0.99,
                high=1.01, text="not slower"),
    ]  # fmt: skip
    return Tier(tier=2, verdict=GateVerdict.FAIL, reason="ttft_ms slower, twice", findings=findings,
                details={"pairs": rows, "usable_pairs": pairs - 1, "control_shift": math.nan})  # fmt: skip


def write_gate(folder: Path, hostile: bool = False) -> Path:
    """Write ``gate.json``; returns ``folder``."""
    folder.mkdir(parents=True)
    (folder / "gate.json").write_text(gate_result(hostile).model_dump_json())
    return folder
