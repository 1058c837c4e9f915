"""What a GPU makes of the engine: kernels checked, then timed as shares of what the device can do at best.

    python -m benchmarks.gpu [--out FILE] [--minutes 7.5]

Needs torch (2.11 or later), Triton (3.6 or later), numpy and msgspec; downloads nothing: weights are random,
in the shapes of Llama-3.1-8B, Qwen3-0.6B and SmolLM2-135M. Runs the parts in order of worth and leaves out
what the time no longer allows; the JSON file is written after each part. The table comes last.

Exit code: 0 all checks passed, 1 a check or a part failed, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
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

    from benchmarks.gpu_parts.bench import Bench
    from benchmarks.gpu_parts.ceilings import measure_ceilings
    from benchmarks.gpu_parts.checks import check_kernels
    from benchmarks.gpu_parts.kernels import time_kernels
    from benchmarks.gpu_parts.steps import measure_steps
    from benchmarks.gpu_parts.telemetry import Telemetry

    bench = Bench(torch.device("cpu" if fake else "cuda"), fake, time.monotonic() + seconds)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "gpu",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fake": fake,
        "device": _device(fake),
        "notes": bench.notes,
        "failed": [],
        "seconds": {},
    }
    path = out or Path(f"gpu-{record['device']['name'].replace(' ', '-')}-{record['created'][:10]}.json")

    def ceilings() -> dict[str, float]:
        bench.ceilings = measure_ceilings(bench)
        return {
            "copy_gb_s": round(bench.ceilings.copy_gb_s, 1),
            "bf16_tflop_s": round(bench.ceilings.bf16_tflop_s, 1),
        }

    def checks() -> list[dict[str, Any]]:
        rows = check_kernels(bench)
        record["failed"] += [f"check: {row['what']}" for row in rows if not row["ok"]]
        return rows

    parts: dict[str, Callable[[], Any]] = {
        "ceilings": ceilings,
        "checks": checks,
        "engine": lambda: measure_steps(bench, lambda: _runtime(bench.device, fake)),
        "kernels": lambda: time_kernels(bench),
    }
    with Telemetry(not fake) as telemetry, _fake_launches(fake):
        for name, part in parts.items():
            began = time.monotonic()
            try:
                record[name] = part()
            except Exception as error:  # the other parts are worth having all the same
                traceback.print_exc()
                record[name] = None
                record["failed"].append(
                    f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                )
            record["seconds"][name] = round(time.monotonic() - began, 1)
            record["telemetry"] = telemetry.summary()
            _write(path, record)
            print(f"{name}: {record['seconds'][name]} s", file=sys.stderr)
            if not fake:
                torch.cuda.empty_cache()
    print(f"written: {path}", file=sys.stderr)
    return record


def _runtime(device: Any, fake: bool) -> Any:
    if fake:
        from engine.executor.device.fake import FakeRuntime

        return FakeRuntime()
    from engine.executor.device.cuda_runtime import CudaRuntime

    return CudaRuntime(device)


def _fake_launches(fake: bool) -> AbstractContextManager[None]:
    if not fake:
        return nullcontext()
    from engine.executor.device.fake import plain_launches

    return plain_launches()


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
    """The short table: Markdown, as it goes into docs/gpu.md."""
    device, ceilings = record["device"], record.get("ceilings") or {}
    lines = [
        f"{device['name']} · {record['created'][:10]} · torch {device['torch']} · triton {device['triton']}",
        f"copy {ceilings.get('copy_gb_s')} GB/s · bf16 matrix product {ceilings.get('bf16_tflop_s')} TFLOP/s",
        "",
    ]
    if record["fake"]:
        lines.insert(0, "NOT A MEASUREMENT: kernels in the interpreter, shapes tiny")
    checks = record.get("checks") or []
    lines.append(f"kernel checks: {sum(row['ok'] for row in checks)} of {len(checks)} passed")
    lines += [f"FAILED {text}" for text in record["failed"]]
    lines += ["", "| what | shape | ms | floor ms | share of floor | bound |", "|---|---|---|---|---|---|"]
    engine = record.get("engine") or {}
    for row in [*engine.get("steps", []), *(record.get("kernels") or [])]:
        how = {True: ", graphs", False: ", no graphs", None: ""}[row.get("graphs")]
        lines.append(
            f"| {row['what']}{how} | {row['shape']} | {row['ms']} | {row['floor_ms']} | {row['share']} "
            f"| {row['bound']} |"
        )
    if engine.get("chunks"):
        lines += ["", "| chunk_size | ttft ms | longest step ms | steps |", "|---|---|---|---|"]
        lines += [
            f"| {row['chunk_size']} | {row['ttft_ms']} | {row['longest_step_ms']} | {row['steps']} |"
            for row in engine["chunks"]
        ]
    if engine.get("gaps"):
        gaps = engine["gaps"]
        lines += [
            "",
            f"gaps between kernels of decode steps at batch {gaps['batch']}: "
            f"longest {gaps['longest_us']} µs, {gaps['over_20_us']} over 20 µs",
        ]
    return "\n".join([*lines, *(f"note: {text}" for text in record["notes"])])


if __name__ == "__main__":
    sys.exit(main())
