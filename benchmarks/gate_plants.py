"""Copies of the source tree with a known slow-down in it, to find out whether the gate finds it.

Nothing in the engine knows of this: the copy's executor factory is wrapped, and the wrapper burns processor
time after each step, a stated share of what the step itself took. ``python -m benchmarks.gate_plants`` checks
the plant against the step trace; :mod:`benchmarks.gate_record` lets the gate judge it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMALL: dict[str, Any] = {
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 2048,
}  # fmt: skip
"""Of the random model called ``small``."""
TREE = ("engine", "workloads", "pyproject.toml", "constraints.txt")

_WRAPPER = '''

class _Slowed:
    """Planted: burns SHARE of each step's own time after it, on this very thread."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def execute(self, plan):
        import time

        start = time.perf_counter_ns()
        result = self._inner.execute(plan)
        own = time.perf_counter_ns() - start
        if ONLY_PREFILL and not any(n > 1 for n in plan.num_scheduled_tokens.values()):
            return result
        until = time.perf_counter_ns() + int(own * SHARE)
        while time.perf_counter_ns() < until:
            pass
        return result


_create_executor = create_executor


def create_executor(config):
    executor, info = _create_executor(config)
    return _Slowed(executor), info
'''


def copy_tree(to: Path, root: Path = ROOT) -> Path:
    """What the gate needs of the source tree ``root``."""
    to.mkdir(parents=True)
    for name in TREE:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to / name)
    return to


def model_of(name: str, scratch: Path) -> str:
    """``name``, or the folder of the random model ``small``, made in ``scratch``."""
    if name != "small":
        return name
    from tests.helpers.tiny_model import make_tiny_model

    return str(make_tiny_model(scratch / "small", **SMALL))


def slow_every_step(tree: Path, share: float = 0.10) -> None:
    _wrap(tree, share, only_prefill=False)


def slow_prefill(tree: Path, share: float = 0.10) -> None:
    """Only steps in which some request computes more than one token."""
    _wrap(tree, share, only_prefill=True)


def waste_budget(tree: Path) -> None:
    """A scheduler bug: a tenth of each step's token budget is never handed out."""
    path = tree / "engine" / "scheduler" / "scheduler.py"
    text = path.read_text(encoding="utf-8")
    old = "StepDraft(self.state.config.max_num_batched_tokens)"
    if old not in text:
        raise SystemExit(f"{path}: {old} not found, the plant must follow the scheduler")
    new = "StepDraft(self.state.config.max_num_batched_tokens * 9 // 10)"
    path.write_text(text.replace(old, new), encoding="utf-8")


def _wrap(tree: Path, share: float, *, only_prefill: bool) -> None:
    path = tree / "engine" / "executor" / "factory.py"
    constants = f"\n\nSHARE = {share!r}\nONLY_PREFILL = {only_prefill!r}\n"
    path.write_text(path.read_text(encoding="utf-8") + constants + _WRAPPER, encoding="utf-8")


PLANTS: dict[str, Callable[[Path, float], None]] = {"step": slow_every_step, "prefill": slow_prefill}

_TRACE = """
import json, sys
from engine.frontend.llm import LLM
from engine.sampling_params import SamplingParams
with LLM(model=sys.argv[1], trace_dir=sys.argv[2], max_num_seqs=16, num_threads=int(sys.argv[3])) as llm:
    for n in range(4):
        llm.generate([[100 + (n * 977 + i * 31) % 3900 for i in range(192)]],
                     SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True))
"""


def planted_share(tree: Path, model: str, num_threads: int = 2) -> dict[str, float]:
    """Per kind of step the share of time between the step's last own stamp and its end, over its own time.

    Own time is prepare to sample; what the wrapper burns lies between the sampled tokens and the hand-over.
    """
    import duckdb

    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        subprocess.run(
            [sys.executable, "-c", _TRACE, model, scratch, str(num_threads)],
            cwd=tree, env=environment, check=True, timeout=200, capture_output=True,
        )  # fmt: skip
        relation = duckdb.sql(
            "select prefill_tokens > 0, median((t_end - t_sample) / (t_sample - t_schedule)) "
            f"from '{scratch}/steps.parquet' where prefill_tokens + decode_tokens > 0 group by 1"
        )
        rows = relation.fetchall() if relation is not None else []
    return {"prefill" if is_prefill else "decode": share for is_prefill, share in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="or small")
    parser.add_argument("--num-threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = model_of(arguments.model, Path(scratch))
        found = {"none": planted_share(copy_tree(Path(scratch) / "none"), model, arguments.num_threads)}
        for name, plant in PLANTS.items():
            tree = copy_tree(Path(scratch) / name)
            plant(tree)
            found[name] = planted_share(tree, model, arguments.num_threads)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
