"""``python -m engine.kernels.triton.aot``: compile every kernel for real GPUs without owning one.

For each architecture, type and head size the launch functions run against a driver that compiles and launches
nothing; registers, spills and shared memory are read from the cubins. Exit 1 when a default configuration
spills or does not fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import triton

from engine.kernels.triton.activation import silu_and_mul
from engine.kernels.triton.aot_driver import ARCHES, AotDriver, Compiled
from engine.kernels.triton.decode import DecodeWorkspace, decode_attention
from engine.kernels.triton.norm import rms_norm
from engine.kernels.triton.platform import interpreted
from engine.kernels.triton.prefill import prefill_attention
from engine.kernels.triton.rope import rope_and_cache
from engine.kernels.triton.sampling import apply_penalties, top_k_top_p_threshold

HEAD_SIZES = (64, 80, 96, 128, 256)
TYPES = {
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
    "bf16+fp8": (torch.bfloat16, True),
    "fp32": (torch.float32, False),
}
_BLOCK_SIZE, _KV_HEADS, _GROUP, _ROWS, _BLOCKS = 16, 2, 4, 4, 8


@dataclass(frozen=True, slots=True)
class Job:
    """One architecture and element type; ``head_size`` 0: the kernels that have none."""

    arch: int
    type_name: str
    head_size: int
    plain: bool = False
    """Without the variants with a sliding window and with a norm of heads."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report."""

    arch: int
    type_name: str
    head_size: int
    variant: str
    compiled: Compiled


def jobs(
    arches: tuple[int, ...], types: tuple[str, ...], head_sizes: tuple[int, ...], plain: bool = False
) -> list[Job]:
    headless = [Job(arch, name, 0) for arch in arches for name in types if not TYPES[name][1]]
    return [
        *headless,
        *(Job(arch, name, size, plain) for arch in arches for name in types for size in head_sizes),
    ]


def compile_job(job: Job) -> list[Row]:
    """Compile what ``job`` names. Raises what Triton raises when a kernel doesn't compile or doesn't fit."""
    driver = AotDriver(job.arch)
    triton.runtime.driver.set_active(driver)
    dtype, fp8 = TYPES[job.type_name]
    launches = _attention(job.head_size, dtype, fp8, job.plain) if job.head_size else _elementwise(dtype)
    rows = []
    for variant in launches:
        rows += [Row(job.arch, job.type_name, job.head_size, variant, found) for found in driver.compiled]
        driver.compiled.clear()
    return rows


def _elementwise(dtype: torch.dtype) -> Iterator[str]:
    """Launch the kernels without heads at the sizes of SmolLM2, Qwen3-0.6B and Llama-3.1-8B."""
    for hidden, inner in ((576, 1536), (1024, 3072), (4096, 14336)):
        x, weight = torch.empty(_ROWS, hidden, dtype=dtype), torch.empty(hidden, dtype=dtype)
        rms_norm(x, weight, 1e-5, torch.empty_like(x), torch.empty_like(x))
        yield f"H={hidden}"
        silu_and_mul(torch.empty(_ROWS, 2 * inner, dtype=dtype), torch.empty(_ROWS, inner, dtype=dtype))
        yield f"I={inner}"
    if dtype == torch.float32:
        one = torch.empty(_ROWS)
        logits = torch.empty(_ROWS, 128256)
        whole = torch.empty(_ROWS + 1, dtype=torch.int32)
        apply_penalties(
            logits, whole, torch.empty(512, dtype=torch.int64), torch.empty(512), one, one, one, 512
        )
        yield "V=128256"
        top_k_top_p_threshold(logits, whole[:_ROWS], one, one, torch.empty(_ROWS), torch.empty(_ROWS))
        yield "V=128256"


def _attention(size: int, dtype: torch.dtype, fp8: bool, plain: bool) -> Iterator[str]:
    """Launch the kernels that deal with heads of ``size`` elements: 8 query heads, 2 KV heads."""
    heads = _GROUP * _KV_HEADS
    cache = torch.empty(_BLOCKS, _KV_HEADS, _BLOCK_SIZE, size, dtype=torch.uint8 if fp8 else dtype)
    qkv = torch.empty(_ROWS, (heads + 2 * _KV_HEADS) * size, dtype=dtype)
    query = qkv[:, : heads * size].view(_ROWS, heads, size)
    table = torch.empty(_ROWS, _BLOCKS, dtype=torch.int32)
    lengths, starts = torch.empty(_ROWS, dtype=torch.int32), torch.empty(_ROWS + 1, dtype=torch.int32)
    long = torch.empty(_ROWS, dtype=torch.int64)
    angles, scale = torch.empty(64, size // 2), torch.empty(_KV_HEADS)
    norm = torch.empty(size, dtype=dtype)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    shared = (query, cache, cache, table, lengths, starts, out)

    for name, weight in (("", None), ("norm", norm))[: 1 if plain else 2]:
        rope_and_cache(
            qkv, long, long, angles, angles, query, cache, cache,
            q_norm=weight, k_norm=weight, eps=1e-6, k_scale=scale, v_scale=scale,
        )  # fmt: skip
        yield name
    for splits in (1, 16):
        workspace = DecodeWorkspace.allocate(_ROWS, heads, size, splits, torch.device("cpu"))
        decode_attention(
            *shared, scale=1.0, num_splits=splits, workspace=workspace if splits > 1 else None,
            k_scale=scale, v_scale=scale,
        )  # fmt: skip
        yield f"splits={splits}"
    for window in (0, 4096)[: 1 if plain else 2]:
        prefill_attention(
            *shared, scale=1.0, k_scale=scale, v_scale=scale, sliding_window=window, skip_decodes=True
        )
        yield f"window={window}" if window else ""


def markdown(rows: list[Row]) -> str:
    """A line for each kernel, type and head size; cells are registers / spilled bytes / KiB shared."""
    arches = sorted({row.arch for row in rows})
    lines = [
        "| kernel | type | D | variant | warps | " + " | ".join(f"sm_{arch}" for arch in arches) + " |",
        "|---|---|---:|---|---:|" + "---|" * len(arches),
    ]
    table: dict[tuple[str, str, int, str], dict[int, Compiled]] = {}
    for row in rows:
        key = (row.compiled.kernel.removesuffix("_kernel"), row.type_name, row.head_size, row.variant)
        table.setdefault(key, {})[row.arch] = row.compiled
    for (kernel, type_name, size, variant), found in sorted(table.items()):
        warps = "/".join(sorted({str(one.num_warps) for one in found.values()}))
        cells = [
            f"{one.registers} / {one.spill_bytes} / {one.shared_bytes / 1024:.1f}"
            if (one := found.get(arch)) is not None
            else "—"
            for arch in arches
        ]
        lines.append(
            f"| {kernel} | {type_name} | {size or '—'} | {variant} | {warps} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.triton.aot", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHES, default=list(ARCHES))
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--head-sizes", type=int, nargs="+", choices=HEAD_SIZES, default=list(HEAD_SIZES))
    parser.add_argument("--plain", action="store_true", help="no sliding window, no norm of heads")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--write", type=Path, help="replace the table in this Markdown file")
    arguments = parser.parse_args(argv)
    if interpreted():
        print("TRITON_INTERPRET: must be unset or 0, the interpreter compiles nothing", file=sys.stderr)
        return 2
    work = jobs(tuple(arguments.arch), tuple(arguments.types), tuple(arguments.head_sizes), arguments.plain)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        rows = [row for found in pool.map(compile_job, work) for row in found]
    print(json.dumps([asdict(row) for row in rows]) if arguments.json else markdown(rows))
    if arguments.write is not None:
        replace_table(arguments.write, markdown(rows))
    spilled = [row for row in rows if row.compiled.spill_bytes]
    for row in spilled:
        print(f"spills: {row}", file=sys.stderr)
    return 1 if spilled else 0


BEGIN, END = "<!-- begin: python -m engine.kernels.triton.aot -->", "<!-- end -->"


def replace_table(path: Path, table: str) -> None:
    """Put ``table`` between the two marks of the Markdown file at ``path``, atomically.

    Raises:
        ValueError: the file lacks the marks.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: the marks {BEGIN} and {END} are missing")
    new = path.with_name(path.name + ".tmp")
    new.write_text(f"{before}{begin}\n\n{table}\n{end}{after}", encoding="utf-8")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
