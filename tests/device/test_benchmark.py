"""``benchmarks/gpu.py`` from end to end without a GPU, and the sums on which its shares rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import table
from benchmarks.gpu_parts import checks
from benchmarks.gpu_parts.bench import Bench, Ceilings
from benchmarks.gpu_parts.cases import attention_cost
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
    assert set(record["seconds"]) == {"ceilings", "checks", "engine", "kernels"}
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


def test_failures_are_in_the_table() -> None:
    record = {
        "device": {"name": "d", "torch": "2", "triton": "3"}, "created": "2026-01-01T00:00:00", "fake": False,
        "failed": ["check: decode"], "checks": [{"ok": False}], "notes": ["left out"],
    }  # fmt: skip
    text = table(record)
    assert "FAILED check: decode" in text
    assert "kernel checks: 0 of 1 passed" in text
    assert text.endswith("note: left out")
