"""``benchmarks/gpu.py`` from end to end without a GPU, and the sums on which its shares rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import table
from benchmarks.gpu_parts import checks
from benchmarks.gpu_parts.bench import Bench, Ceilings
from benchmarks.gpu_parts.cases import attention_cost
from benchmarks.gpu_parts.parts import Part, all_parts, run_part
from benchmarks.gpu_parts.shapes import SHAPES, decode_floor, layer_parameters, prefill_floor

LLAMA = SHAPES["llama-3.1-8b"]
ROOT = Path(__file__).resolve().parents[2]


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_without_a_gpu_it_is_one_line() -> None:
    done = script()
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: device='cuda': ")


def test_a_fake_run_goes_through_every_part(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = script("--fake", "--out", str(out))
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["failed"] == []
    assert record["fake"] is True
    assert len(record["checks"]) == 12
    assert all(row["ok"] for row in record["checks"])
    steps = {(row["what"], row["graphs"]) for row in record["engine"]["steps"]}
    assert steps == {("decode step", True), ("decode step", False), ("prefill step", False)}
    assert {row["what"] for row in record["kernels"]} == {
        "decode attention",
        "prefill attention",
        "rms_norm + residual",
        "silu · mul",
        "rope + KV write",
        "top-k and top-p cut",
    }
    assert [row["chunk_size"] for row in record["engine"]["chunks"]] == [16]
    assert list(record["seconds"]) == [part.name for part in all_parts(fake=True)]
    assert done.stdout == table(record) + "\n"
    assert done.stdout.startswith("NOT A MEASUREMENT")
    assert not list(tmp_path.glob(".*.partial"))


def test_floors() -> None:
    """Llama-3.1-8B has 8 030 261 248 parameters; the embedding and the norms are not multiplied with."""
    matrices = layer_parameters(LLAMA) + LLAMA.vocab_size * LLAMA.hidden_size
    norms = (2 * 32 + 1) * 4096
    assert matrices + LLAMA.vocab_size * LLAMA.hidden_size + norms == 8_030_261_248
    num_bytes, flop = decode_floor(LLAMA, 64, 4096, 2)
    assert num_bytes == 2 * matrices + 64 * 4096 * 131_072
    assert flop == 2 * 64 * matrices + 4 * 64 * 4096 * 4096 * 32
    _, whole = prefill_floor(LLAMA, 8192, 0, 2)
    parts = prefill_floor(LLAMA, 2048, 6144, 2)[1] + prefill_floor(LLAMA, 6144, 0, 2)[1]
    assert parts == whole + 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert attention_cost(LLAMA, [(4, 4)], 2) == (4 * 2048 * 2 + 4 * 8192 * 2, 4 * 10 * 4096)


def test_a_share_is_of_the_tighter_ceiling() -> None:
    ceilings = Ceilings(copy_gb_s=1000.0, bf16_tflop_s=100.0)
    assert ceilings.floor_ms(2e9, 1e11) == pytest.approx(2.0)
    assert ceilings.bound(2e9, 1e11) == "memory"
    assert ceilings.floor_ms(2e9, 1e12) == pytest.approx(10.0)
    assert ceilings.bound(2e9, 1e12) == "compute"
    bench = Bench(torch.device("cpu"), True, 0.0, ceilings=ceilings)
    assert bench.share("x", "y", 4.0, 2e9, 0) == {
        "what": "x", "shape": "y", "ms": 4.0, "floor_ms": 2.0, "share": 0.5, "bound": "memory",
    }  # fmt: skip


def test_a_wrong_kernel_fails_its_check() -> None:
    wanted = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert checks._error(wanted.float(), wanted) < 0.1
    off = wanted.float()
    off[7] += 0.01
    assert checks._error(off, wanted) > 1.0
    off[7] = float("nan")
    assert checks._error(off, wanted) == float("inf") or checks._error(off, wanted) > 1e30


RECORD: dict[str, Any] = {
    "device": {"name": "d", "torch": "2", "triton": "3"}, "created": "2026-01-01T00:00:00", "fake": False,
    "ceilings": None, "failed": ["check: decode"], "checks": [{"ok": False}], "notes": ["left out"],
    "engine": {"steps": [], "chunks": [], "gaps": None}, "kernels": [],
}  # fmt: skip


def test_failures_are_in_the_table() -> None:
    text = table(RECORD)
    assert "\nFAILED check: decode\n" in text
    assert "\nkernel checks: 0 of 1 passed\n" in text
    assert "\nnote: left out\n" in text
    assert text.endswith("| d · 2026-01-01" + " | not measured" * 5 + " |")


def test_the_figures_with_a_bar_come_last() -> None:
    def row(what: str, shape: str, ms: float, **how: bool) -> dict[str, Any]:
        shape = f"llama-3.1-8b {shape}"
        return {"what": what, "shape": shape, "ms": ms, "floor_ms": 1.0, "share": 1 / ms, "bound": "-", **how}

    steps = [
        row("decode step", "batch 1 context 4096", 1.0, graphs=True),
        row("decode step", "batch 64 context 4096", 1.5, graphs=True),
        row("decode step", "batch 1 context 4096", 3.0, graphs=False),
        row("decode step", "batch 64 context 4096", 3.0, graphs=False),
    ]
    kernels = [
        row("prefill attention", "1 × 8192 of 8192", 1.6),
        row("decode attention", "batch 64 context 4096 block 16", 1.25),
        row("decode attention", "batch 64 context 4096 block 128", 1.0),
    ]
    gaps = {"batch": 64, "gaps": 9, "longest_us": 17.2, "over_20_us": 0}
    record = {**RECORD, "engine": {"steps": steps, "chunks": [], "gaps": gaps}, "kernels": kernels}
    assert table(record).splitlines()[-1] == (
        "| d · 2026-01-01 | 80% | 62% | 1.00 × floor | 1.50 × floor | 0 (longest 17.2 µs) |"
    )


def _raises(bench: Bench) -> Iterator[tuple[str, Any]]:
    yield "kernels", {"found": 1}
    bench.notes.append("so far")
    raise RuntimeError("no kernel image\nsecond line")


def _faults(_bench: Bench) -> Iterator[tuple[str, Any]]:
    yield "kernels", {"found": 2}
    os._exit(7)


def _hangs(_bench: Bench) -> Iterator[tuple[str, Any]]:
    yield "kernels", {"found": 3}
    time.sleep(3600)


@pytest.mark.parametrize(
    ("work", "findings"),
    [
        (_raises, [("failed", "p: RuntimeError: no kernel image"), ("notes", "p: so far")]),
        (_faults, [("failed", "p: its process ended with exit code 7")]),
    ],
)
def test_a_part_that_fails_keeps_what_it_found(work: Any, findings: list[tuple[str, str]]) -> None:
    bench = Bench(torch.device("cpu"), True, time.monotonic() + 600)
    (section, row), *rest = run_part(Part("p", work, 600), bench)
    assert section == "kernels"
    assert row["found"] in (1, 2)
    assert rest == findings


def test_a_part_that_hangs_is_ended() -> None:
    bench = Bench(torch.device("cpu"), True, time.monotonic() + 600)
    parts = run_part(Part("p", _hangs, 0.0), bench)
    assert list(parts)[-1] == ("failed", "p: did not end in 0 s")
