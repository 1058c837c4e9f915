"""What the gate says on this machine: of equal trees many times, of planted changes, of broken answers.

    python -m benchmarks.gate_record --aa 20 --model small --out gate-record.jsonl
    python -m benchmarks.gate_record --aa 0 --cases step,prefill,scheduler,killed,empty,truncated,other

One line of JSON per gate, appended; a record that was cut goes on with what is missing. Every case runs on
copies of one commit. ``small`` is a random model that starts and runs in three seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gate_plants import PLANTS, ROOT, copy_tree, model_of, waste_budget
from experiments.gate import scripts_runner
from experiments.gate.arms import export_revision
from experiments.gate.models import Side
from experiments.gate.run import Gate, GateRequest
from experiments.gate.scripts_runner import BeforeTurn, RunScript, RunTurns, run_script, run_turns
from experiments.gate.workloads import with_sha256

SPOILED: dict[str, str] = {
    "killed": "os.kill(os.getpid(), 9)",
    "empty": "path.write_text('')",
    "truncated": "path.write_text(text[: len(text) // 2])",
    "other": "path.write_text(text.replace(specification['sha256'], 'f' * 64))",
}
"""Case to what the base's script does in the place of its last line, which puts the answer into its place."""
_LAST_LINE = "os.replace(scratch, path)"


def spoiled_run(case: str, scratch: Path) -> RunScript:
    """The gate's own scripts, but the base's answer never arrives whole."""
    scripts = scratch / f"scripts-{case}"
    shutil.copytree(scripts_runner.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    common = scripts / "common.py"
    text = common.read_text(encoding="utf-8")
    if _LAST_LINE not in text:
        raise SystemExit(f"{common}: {_LAST_LINE} not found, the case must follow the scripts")
    common.write_text(text.replace(_LAST_LINE, SPOILED[case]), encoding="utf-8")

    def run(side: Side, script: str, specification: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        folder = scripts if side.name == "base" else scripts_runner.SCRIPTS
        return run_script(side, script, specification, timeout_s, scripts=folder)

    return run


def longer(times: int) -> RunTurns:
    """``times`` as many turns: those of the small model are short."""

    def run(
        order: Sequence[Side], script: str, specification: dict[str, Any], timeout_s: float,
        before_turn: BeforeTurn,
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        light, full = specification["light"], specification["saturated"]
        rest = {name: value for name, value in specification.items() if name != "sha256"}
        more = {
            "light": {**light, "requests": light["requests"] * times},
            "saturated": {**full, "repeats": full["repeats"] * times},
        }
        return run_turns(order, script, with_sha256({**rest, **more}), timeout_s, before_turn)

    return run


def judge(
    request: GateRequest, run: RunScript, turns: RunTurns, say: Callable[[str], None]
) -> dict[str, Any]:
    before = os.getloadavg()[0]
    # The trees are copies of one commit: what is installed here serves both.
    gate = Gate(request, run=run, turns=turns, say=say, python=lambda _side, _folder, _out: sys.executable)
    result = gate.result()
    found: dict[str, Any] = {
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "seconds": result.seconds,
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
    for tier in result.tiers:
        if tier.tier == 2 and tier.findings:
            found["pairs"] = [len(tier.details["pairs"]), tier.details["usable_pairs"]]
            kept = {"verdict", "ratio", "low", "high"}
            found["metrics"] = {f.name: f.model_dump(mode="json", include=kept) for f in tier.findings}
        elif tier.tier == 1:
            found["worse"] = sum(f.verdict == "FAIL" for f in tier.findings)
    return found


def plan(
    case: str, seed: int, share: float, base: Path, scratch: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """One gate: what it is asked, with the case's change made to a fresh copy of ``base``."""
    head = copy_tree(scratch / f"{case}-{seed}", base)
    if case in PLANTS:
        PLANTS[case](head, share)
    if case == "scheduler":
        waste_budget(head)
    tiers = (0, 1) if case == "scheduler" else (1,) if case in SPOILED else (2,)
    return {
        "request": GateRequest(
            out=scratch / "out", base_dir=base, head_dir=head, tiers=tiers, seed=seed, even_if_unchanged=True,
            **options,
        ),
        "run": spoiled_run(case, scratch) if case in SPOILED else run_script,
    }  # fmt: skip


def _say(case: str, seed: int, text: str) -> None:
    print(f"{case} {seed}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aa", type=int, default=20, help="gates between equal trees")
    parser.add_argument("--first-seed", type=int, default=0, help="of the gates between equal trees")
    parser.add_argument("--cases", default="", help=", ".join([*PLANTS, "scheduler", *SPOILED]))
    parser.add_argument("--most", type=int, default=1000, help="gates to run in this call")
    parser.add_argument("--model", default="smollm2-135m", help="or small")
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--times", type=int, default=1, help="as many turns in a pair")
    parser.add_argument("--share", type=float, default=0.10, help="of a step that a plant adds to it")
    parser.add_argument("--revision", default="HEAD")
    parser.add_argument("--out", type=Path, default=Path("gate-record.jsonl"))
    arguments = parser.parse_args()
    known = {*PLANTS, "scheduler", *SPOILED}
    names = [name for name in arguments.cases.split(",") if name]
    if unknown := set(names) - known:
        parser.error(f"cases: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {(entry["case"], entry["seed"]) for entry in map(json.loads, lines)}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.aa)
    wanted = [("aa", seed) for seed in seeds] + [(name, 0) for name in names]
    engine = {} if arguments.num_threads is None else {"num_threads": arguments.num_threads}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        commit = export_revision(ROOT, arguments.revision, scratch / "base")
        options = {"model": model_of(arguments.model, scratch), "engine": engine}
        for case, seed in [key for key in wanted if key not in done][: arguments.most]:
            say = partial(_say, case, seed)
            gate = plan(case, seed, arguments.share, scratch / "base", scratch, options)
            found = judge(gate["request"], gate["run"], longer(arguments.times), say=say)
            what = {"case": case, "seed": seed, "model": arguments.model, "times": arguments.times, **engine}
            if case in PLANTS:
                what["share"] = arguments.share
            what["commit"] = commit
            with arguments.out.open("a") as file:
                file.write(json.dumps({**what, **found}) + "\n")
            say(f"{found['verdict']} (exit {found['exit_code']}): {found['reason']}")
    entries = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    for case in dict.fromkeys(entry["case"] for entry in entries):
        print(case, dict(Counter(e["verdict"] for e in entries if e["case"] == case)))


if __name__ == "__main__":
    main()
