"""What a GPU makes of the engine: kernels checked, then timed as shares of what the device can do at best.

    python -m benchmarks.gpu [--out FILE] [--minutes 7.5]

Needs torch (2.11 or later), Triton (3.6 or later), numpy and msgspec; downloads nothing: weights are random,
in the shapes of Llama-3.1-8B, Qwen3-0.6B and SmolLM2-135M. Runs the parts in order of worth, each in a
process of its own, and leaves out what the time no longer allows; the JSON file is written after each part.
The tables come last, the one with the bars behind all others.

Exit code: 0 all checks passed, 1 a check or a part failed, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 2
EXIT_FAILED = 1
EXIT_NO_GPU = 2


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file; default: gpu-DEVICE-DATE.json here.")
    parser.add_argument("--minutes", type=float, default=7.5, help="Time for everything.")
    parser.add_argument(
        "--fake",
        action="store_true",
        help="No GPU: tiny shapes on the CPU, kernels in Triton's interpreter. Tests the script, no figures.",
    )
    arguments = parser.parse_args(argv)
    if arguments.fake:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch

    if not arguments.fake and not torch.cuda.is_available():
        why = "torch finds no CUDA device" if torch.version.cuda else "this torch is built without CUDA"
        print(f"error: device='cuda': {why}; --fake tests the script on the CPU", file=sys.stderr)
        return EXIT_NO_GPU
    record = run(arguments.fake, arguments.minutes * 60, arguments.out)
    print(table(record))
    return EXIT_FAILED if record["failed"] else 0


def run(fake: bool, seconds: float, out: Path | None) -> dict[str, Any]:
    """All parts; the record that is in the file."""
    import torch

    from benchmarks.gpu_parts.bench import Bench, Ceilings
    from benchmarks.gpu_parts.parts import all_parts, run_part
    from benchmarks.gpu_parts.telemetry import Telemetry

    bench = Bench(torch.device("cpu" if fake else "cuda"), fake, time.monotonic() + seconds)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "gpu",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fake": fake,
        "device": _device(fake),
        "ceilings": None,
        "checks": [],
        "engine": {"steps": [], "chunks": [], "gaps": None},
        "kernels": [],
        "notes": [],
        "failed": [],
        "seconds": {},
    }
    path = out or Path(f"gpu-{record['device']['name'].replace(' ', '-')}-{record['created'][:10]}.json")
    with Telemetry(not fake) as telemetry:
        for part in all_parts(fake):
            if bench.seconds_left <= 0:
                record["notes"].append(f"{part.name}: left out, no time")
                continue
            began = time.monotonic()
            for section, found in run_part(part, bench):
                _add(record, section, found)
            if record["ceilings"]:
                bench.ceilings = Ceilings(**record["ceilings"])
            record["seconds"][part.name] = round(time.monotonic() - began, 1)
            record["telemetry"] = telemetry.summary()
            _write(path, record)
            print(f"{part.name}: {record['seconds'][part.name]} s", file=sys.stderr)
    print(f"written: {path}", file=sys.stderr)
    return record


def _add(record: dict[str, Any], section: str, found: Any) -> None:
    if section in ("ceilings", "gaps"):
        (record["engine"] if section == "gaps" else record)[section] = found
        return
    (record["engine"] if section in record["engine"] else record)[section].append(found)
    if section == "checks" and not found["ok"]:
        record["failed"].append(f"check: {found['what']}")


def _device(fake: bool) -> dict[str, Any]:
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    if fake:
        return {"name": "fake", **versions}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        **versions,
    }


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)


def table(record: dict[str, Any]) -> str:
    """The tables in Markdown. The last lines are what docs/gpu.md has room for."""
    device, ceilings = record["device"], record["ceilings"] or {}
    title = f"{device['name']} · {record['created'][:10]}"
    lines = ["NOT A MEASUREMENT: kernels in the interpreter, shapes tiny"] if record["fake"] else []
    lines += [
        f"{title} · torch {device['torch']} · triton {device['triton']}",
        "",
        "| what | shape | ms | floor ms | share of floor | bound |",
        "|---|---|---|---|---|---|",
    ]
    engine = record["engine"]
    for row in [*engine["steps"], *record["kernels"]]:
        how = {True: ", graphs", False: ", no graphs", None: ""}[row.get("graphs")]
        lines.append(
            f"| {row['what']}{how} | {row['shape']} | {row['ms']} | {row['floor_ms']} | {row['share']} "
            f"| {row['bound']} |"
        )
    if engine["chunks"]:
        lines += ["", "| chunk_size | ttft ms | longest step ms | steps |", "|---|---|---|---|"]
        lines += [
            f"| {row['chunk_size']} | {row['ttft_ms']} | {row['longest_step_ms']} | {row['steps']} |"
            for row in engine["chunks"]
        ]
    checks = record["checks"]
    lines += [
        "",
        *(f"note: {text}" for text in record["notes"]),
        f"copy {ceilings.get('copy_gb_s')} GB/s · bf16 matrix product {ceilings.get('bf16_tflop_s')} TFLOP/s",
        f"kernel checks: {sum(row['ok'] for row in checks)} of {len(checks)} passed",
        *(f"FAILED {text}" for text in record["failed"]),
        "",
        "| device, date | decode attention, batch 64 / 4k | prefill attention, 8k | decode step 8B, batch 1 "
        "| decode step 8B, batch 64 | gaps over 20 µs |",
        "|---|---|---|---|---|---|",
        f"| {' | '.join([title, *_bars(record)])} |",
    ]
    return "\n".join(lines)


def _bars(record: dict[str, Any]) -> list[str]:
    """The figures that have a bar: kernels as a share of the floor, steps as multiples of it."""

    def find(rows: list[dict[str, Any]], what: str, shape: str) -> dict[str, Any] | None:
        matching = [row for row in rows if row["what"] == what and row["shape"] == f"llama-3.1-8b {shape}"]
        return next((row for row in matching if row.get("graphs") is not False), None)

    def share(what: str, shape: str) -> str:
        row = find(record["kernels"], what, shape)
        return f"{row['share']:.0%}" if row else "not measured"

    def multiple(shape: str) -> str:
        row = find(record["engine"]["steps"], "decode step", shape)
        return f"{row['ms'] / row['floor_ms']:.2f} × floor" if row else "not measured"

    gaps = record["engine"]["gaps"]
    return [
        share("decode attention", "batch 64 context 4096 block 16"),
        share("prefill attention", "1 × 8192 of 8192"),
        multiple("batch 1 context 4096"),
        multiple("batch 64 context 4096"),
        "not measured"
        if gaps is None or gaps["over_20_us"] is None
        else f"{gaps['over_20_us']} (longest {gaps['longest_us']} µs)",
    ]


if __name__ == "__main__":
    sys.exit(main())
