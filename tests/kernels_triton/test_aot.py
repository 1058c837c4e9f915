"""Default configurations compile for real GPUs without spills: a subset here, all in docs/kernels.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.kernels.triton.aot import HEAD_SIZES, TYPES, markdown, replace_table
from engine.kernels.triton.aot import Row as ReportRow
from engine.kernels.triton.aot_driver import ARCHES, Compiled

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {
    "decode_attention",
    "decode_reduce",
    "prefill_attention",
    "rope_and_cache",
    "rms_norm",
    "silu_and_mul",
}


def run(*arguments: str, cache: Path, interpret: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-m", "engine.kernels.triton.aot", *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "type_name", "head_size"), [(80, "bf16+fp8", 64), (90, "bf16", 128), (100, "bf16", 64)]
)
def test_default_configurations_do_not_spill(
    arch: int, type_name: str, head_size: int, tmp_path: Path
) -> None:
    done = run(
        "--arch", str(arch), "--types", type_name, "--head-sizes", str(head_size), "--plain", "--json",
        cache=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    names = {row["compiled"]["kernel"].removesuffix("_kernel") for row in rows}
    assert names == (KERNELS if type_name == "bf16" else KERNELS - {"rms_norm", "silu_and_mul"})
    assert [row for row in rows if row["compiled"]["spill_bytes"]] == []
    assert all(16 <= row["compiled"]["registers"] <= 255 for row in rows)


def test_the_table_in_the_docs_is_whole_and_without_spills() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if re.match(r"\| \w+ \| (bf16|fp16|fp32)", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    for kernel in ("decode_attention", "decode_reduce", "prefill_attention", "rope_and_cache"):
        found = {(row[1], row[2]) for row in cells if row[0] == kernel}
        assert found == {(name, str(size)) for name in TYPES for size in HEAD_SIZES}, kernel
    assert all(len(row) == 5 + len(ARCHES) for row in cells)
    spilled = [row for row in cells if any(cell.split(" / ")[1] != "0" for cell in row[5:])]
    assert spilled == []


def test_the_interpreter_compiles_nothing(tmp_path: Path) -> None:
    done = run(cache=tmp_path, interpret="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "TRITON_INTERPRET: must be unset or 0, the interpreter compiles nothing\n"


def test_a_table_is_put_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: python -m engine.kernels.triton.aot -->\nold\n<!-- end -->\nafter\n")
    rows = [
        ReportRow(arch, "bf16", 64, "", Compiled("x_kernel", 40 + arch, spilled, 2048, 4, 3))
        for arch, spilled in ((80, 0), (90, 8))
    ]
    replace_table(page, markdown(rows))
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| x | bf16 | 64 |  | 4 | 120 / 0 / 2.0 | 130 / 8 / 2.0 |" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="the marks"):
        replace_table(page, "")
    assert page.read_text() == "no marks"
