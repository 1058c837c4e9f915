"""The seam to the real runner: what is asked of ``run_bench`` for a cell, and how a stored run is read
back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from experiments.bench_cell import BenchRunner, outcome_of
from experiments.metric_info import GOOD, OFFERED, WINDOW
from experiments.models import Cell
from experiments.spec import Load
from tests.experiments.world import spec_of
from workbench.benchspec import BenchSpec
from workbench.calibrate import PROBE_SECONDS
from workbench.manifest import TargetInfo
from workbench.records import REQUESTS, REQUESTS_SCHEMA_VERSION
from workbench.runstore import Run, RunStore

METRICS: dict[str, Any] = {
    "window": {"duration_s": 20.0},
    "latency": {
        "itl": {"n": 400, "p50": 20.0, "p99": 90.0, "p99_flagged": True},
        "ttft": {"n": 2000, "p50": 300.0, "p99_flagged": False},
    },
    "throughput": {"output_tok_s": 100.0, "request_s": 2.0},
    "goodput": {"offered": 40, "good": 30, "good_s": 1.5, "ratio": 0.75},
    "groups": {"chat": {"latency": {"itl": {"p50": 19.0, "p99_flagged": True}}}},
    "validity": {"valid": True, "reasons": []},
}


def stored(root: Path, status: Any = "complete", error: str | None = None, **changes: Any) -> Run:
    writer = RunStore(root).create(target=TargetInfo(kind="builtin", model="m", echo={"block_size": 16}))
    rows = [
        {"index": 0, "phase": "warmup", "status": "ok", "output_sha256": "w" * 64},
        {"index": 0, "phase": "measure", "status": "ok", "output_sha256": "a" * 64},
        {"index": 1, "phase": "measure", "status": "failed", "output_sha256": None},
        {"index": 2, "phase": "measure", "status": "ok", "output_sha256": "c" * 64},
    ]
    table = pa.Table.from_pylist(rows, schema=REQUESTS)
    writer.write_table("requests", table, REQUESTS_SCHEMA_VERSION)
    if status != "failed":
        writer.write_metrics({**METRICS, **changes})
    return writer.finish(status, error)


def test_a_good_run_is_done_with_all_that_the_sweep_needs(tmp_path: Path) -> None:
    run = stored(tmp_path)
    outcome = outcome_of(run)
    assert outcome.state == "DONE"
    assert outcome.run == run.id
    assert outcome.metrics["itl_p99"] == 90.0
    assert outcome.metrics["goodput_ratio"] == 0.75
    assert (outcome.metrics[GOOD], outcome.metrics[OFFERED], outcome.metrics[WINDOW]) == (30, 40, 20.0)
    assert outcome.outputs == {"0": "a" * 16, "2": "c" * 16}
    assert {"itl_p99", "chat/itl_p99"} <= set(outcome.flagged)
    assert "ttft_p99" not in outcome.flagged
    assert outcome.context["target"]["echo"] == {"block_size": 16}


def test_an_invalid_run_is_void_and_worth_another_try(tmp_path: Path) -> None:
    outcome = outcome_of(stored(tmp_path, validity={"valid": False, "reasons": ["1 of 40 requests failed"]}))
    assert (outcome.state, outcome.retryable) == ("VOID", True)
    assert outcome.reason == "1 of 40 requests failed"
    assert outcome.metrics["itl_p99"] == 90.0


def test_a_clamped_setting_is_void_and_not_tried_again(tmp_path: Path) -> None:
    reasons = ["config: max_num_batched_tokens=64 was asked for, 128 is in force"]
    outcome = outcome_of(stored(tmp_path, validity={"valid": False, "reasons": reasons}))
    assert (outcome.state, outcome.retryable) == ("VOID", False)


def test_a_dead_server_is_a_failed_run_with_its_error(tmp_path: Path) -> None:
    outcome = outcome_of(stored(tmp_path, status="failed", error="the server ended by itself"))
    assert (outcome.state, outcome.reason) == ("FAILED", "the server ended by itself")


def test_an_interrupted_run_interrupts_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        outcome_of(stored(tmp_path, status="interrupted", error="interrupted"))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[BenchSpec]:
    """What ``run_bench`` was asked for."""
    found: list[BenchSpec] = []

    def fake(spec: BenchSpec, store: RunStore, *, progress: object = None) -> Run:
        found.append(spec)
        return stored(tmp_path)

    monkeypatch.setattr("workbench.bench.run_bench", fake)
    return found


def test_a_cell_is_asked_for_with_its_level_seed_nonce_and_the_shared_load(
    asked: list[BenchSpec], tmp_path: Path
) -> None:
    spec = spec_of(engine={"block_size": 32})
    cell = Cell(block=3, position=1, level=64, baseline_copy=None, seed=77, nonce="n3")
    BenchRunner(spec, RunStore(tmp_path), "sweep-1")(cell, Load(request_rate=1.5, num_prompts=30))
    (bench,) = asked
    assert bench.engine == {
        "model": "smollm2-135m", "max_num_seqs": 32, "block_size": 32, "max_num_batched_tokens": 64,
    }  # fmt: skip
    assert (bench.seed, bench.nonce, bench.rate, bench.num_requests) == (77, "n3", 1.5, 30)
    assert bench.sweep is not None
    assert (bench.sweep.id, bench.sweep.level, bench.sweep.block, bench.sweep.position) == (
        "sweep-1",
        64,
        3,
        1,
    )
    assert bench.workload.name == "chat-and-documents"
    assert bench.slo == spec.slo


def test_auto_leaves_the_choice_to_the_engine(asked: list[BenchSpec], tmp_path: Path) -> None:
    spec = spec_of(param="num_threads", values="1")
    cell = Cell(block=0, position=0, level="auto", baseline_copy=0, seed=1)
    BenchRunner(spec, RunStore(tmp_path))(cell, Load(request_rate=1.0, num_prompts=4))
    assert asked[0].engine["num_threads"] is None


def test_the_probe_keeps_the_baseline_busy_for_a_bounded_time(asked: list[BenchSpec], tmp_path: Path) -> None:
    probe = BenchRunner(spec_of(), RunStore(tmp_path)).probe()
    (bench,) = asked
    assert bench.workload.arrivals.kind == "closed"
    assert bench.max_seconds == PROBE_SECONDS
    assert bench.engine["max_num_batched_tokens"] == 2048
    assert bench.sweep is None
    assert probe.request_s == 2.0
