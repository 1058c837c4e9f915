"""Native kernels against the machine's floors, each layer with its own weights and cache: nothing stays in
the CPU's caches from one layer to the next.

    python -m benchmarks.kernels_cpu [--threads 2] [--dtype bf16] [--only attention,linear] [--json]

Shapes are SmolLM2-135M's: 30 layers, hidden 576, 9 query and 3 KV heads of 64, intermediate 1536.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from benchmarks.machine import FloorMeter, Floors, seconds
from engine.kernels.cpu.units import NativeAttention, NativeLinear
from engine.kernels.threads import usable_physical_cores

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 30, 576, 1536, 9, 3, 64, 16
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Measurement:
    """One kernel over all layers."""

    kernel: str
    case: str
    ms: float
    floor_ms: float
    """The larger of: its bytes at the read bandwidth, its products at the matrix rate."""
    bound: str
    share: float
    """floor / measured: 1.0 is the machine's limit."""


def measure(
    kernel: str,
    case: str,
    call: Callable[[], object],
    num_bytes: float,
    flop: float,
    dtype: torch.dtype,
    meter: FloorMeter,
    repeats: int,
) -> Measurement:
    call()
    meter.clear()
    times = []
    for _ in range(repeats):
        meter.sample()
        call()  # torch's threads still poll for a while after the meter's products: not so in a step
        times.append(seconds(call) * 1e3)
    floors: Floors = meter.floors()
    memory, compute = floors.memory_ms(num_bytes), floors.compute_ms(flop, dtype)
    ms, floor = statistics.median(times), max(memory, compute)
    bound = "memory" if memory >= compute else "compute"
    return Measurement(kernel, case, ms, floor, bound, floor / ms)


def attention(dtype: torch.dtype, threads: int, meter: FloorMeter, repeats: int) -> Iterator[Measurement]:
    cases = [
        ("decode", 1, 2048, 1),
        ("decode", 32, 320, 1),
        ("decode", 32, 2048, 1),
        ("prefill", 1, 2048, 2048),
    ]
    for kind, batch, context, new in cases:
        # Long contexts take fewer layers: a gigabyte of cache tells as much as four.
        per_layer = 2 * batch * context * KV_HEADS * HEAD_SIZE * dtype.itemsize
        layers = max(2, min(LAYERS, (1 << 30) // per_layer))
        width = -(-context // BLOCK)
        blocks = 1 + batch * width
        native = NativeAttention(
            HEADS, KV_HEADS, HEAD_SIZE, BLOCK, blocks, dtype, num_layers=layers, num_threads=threads
        )
        native.fill(0.01)
        table = (torch.randperm(blocks - 1) + 1).int().view(batch, width).contiguous()
        query = torch.randn(batch * new, HEADS, HEAD_SIZE).to(dtype)
        starts = torch.arange(0, batch * new + 1, new, dtype=torch.int32)
        lengths = torch.full((batch,), context, dtype=torch.int32)

        def call(native=native, query=query, starts=starts, lengths=lengths, table=table, layers=layers):  # type: ignore[no-untyped-def]
            return native(query, starts, lengths, table, num_layers=layers)

        visible = batch * sum(range(context - new + 1, context + 1))
        flop = 4.0 * layers * HEADS * HEAD_SIZE * visible
        label = f"batch {batch}, context {context}, {layers} layers"
        yield measure(f"attention {kind}", label, call, layers * per_layer, flop, dtype, meter, repeats)


def linears(
    dtype: torch.dtype, threads: int, int8: bool, meter: FloorMeter, repeats: int
) -> Iterator[Measurement]:
    shapes = {
        "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_SIZE, HIDDEN, False),
        "o": (HIDDEN, HEADS * HEAD_SIZE, False),
        "gate_up+silu": (2 * INNER, HIDDEN, True),
        "down": (HIDDEN, INNER, False),
    }
    for name, (n, k, gated) in shapes.items():
        units = [
            NativeLinear(torch.randn(n, k).to(dtype), gated=gated, int8=int8, num_threads=threads)
            for _ in range(LAYERS)
        ]
        for rows in (1, 4, 16, 32, 512):
            x = torch.randn(rows, k).to(dtype)
            out = torch.empty((rows, n // 2) if gated else (rows, n), dtype=dtype if gated else torch.float32)

            def call(units=units, x=x, out=out):  # type: ignore[no-untyped-def]
                for unit in units:
                    unit(x, out)

            num_bytes = LAYERS * n * k * (1 if int8 else dtype.itemsize)
            label = f"{rows} rows{', int8' if int8 else ''}"
            flop = 2.0 * LAYERS * n * k * rows
            yield measure(f"linear {name}", label, call, num_bytes, flop, dtype, meter, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_physical_cores())
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--only", default="attention,linear,int8")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtype, only = DTYPES[args.dtype], args.only.split(",")
    meter = FloorMeter(args.threads)
    results: list[Measurement] = []

    def show(measurements: Iterator[Measurement]) -> None:
        for m in measurements:
            results.append(m)
            if not args.json:
                print(
                    f"{m.kernel:20} {m.case:36} {m.ms:9.2f} ms   "
                    f"floor {m.floor_ms:8.2f} ({m.bound:7})  {m.share:5.0%}",
                    flush=True,
                )

    if "attention" in only:
        show(attention(dtype, args.threads, meter, args.repeats))
    if "linear" in only:
        show(linears(dtype, args.threads, False, meter, args.repeats))
    if "int8" in only:
        show(linears(dtype, args.threads, True, meter, args.repeats))
    if args.json:
        print(
            json.dumps(
                {"dtype": args.dtype, "threads": args.threads, "kernels": [asdict(m) for m in results]}
            )
        )


if __name__ == "__main__":
    main()
