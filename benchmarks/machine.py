"""What this machine can do at best: read bandwidth and matrix rate. Every benchmark is held against these.

python -m benchmarks.machine [--threads 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from engine.kernels.threads import usable_physical_cores

_READ_BYTES = 512 << 20
_MATRIX = 2048


@dataclass(frozen=True)
class Floors:
    """Medians over the same run that they are compared with."""

    threads: int
    read_gb_s: float
    """Reading memory once, with all threads (a sum over float32)."""
    bf16_gflop_s: float
    fp32_gflop_s: float
    """Square matrix products in torch."""

    def memory_ms(self, num_bytes: float) -> float:
        return num_bytes / self.read_gb_s / 1e6

    def compute_ms(self, flop: float, dtype: torch.dtype) -> float:
        return flop / (self.bf16_gflop_s if dtype == torch.bfloat16 else self.fp32_gflop_s) / 1e6


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class FloorMeter:
    """Samples the floors again and again between other measurements: on a shared machine they move too."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._threads = threads
        self._memory = torch.ones(_READ_BYTES // 4)
        self._matrices = {
            dtype: torch.randn(_MATRIX, _MATRIX).to(dtype) for dtype in (torch.bfloat16, torch.float32)
        }
        self._read: list[float] = []
        self._rates: dict[torch.dtype, list[float]] = {dtype: [] for dtype in self._matrices}
        self.sample()  # the first touch is slow
        self.clear()

    def clear(self) -> None:
        self._read.clear()
        for rates in self._rates.values():
            rates.clear()

    def sample(self) -> None:
        """One reading of each floor, about 100 ms."""
        self._read.append(_READ_BYTES / seconds(self._memory.sum) / 1e9)
        for dtype, matrix in self._matrices.items():
            self._rates[dtype].append(2 * _MATRIX**3 / seconds(lambda m=matrix: m @ m) / 1e9)  # type: ignore[misc]

    def floors(self) -> Floors:
        return Floors(
            self._threads,
            statistics.median(self._read),
            statistics.median(self._rates[torch.bfloat16]),
            statistics.median(self._rates[torch.float32]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_physical_cores())
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    meter = FloorMeter(args.threads)
    for _ in range(args.samples):
        meter.sample()
    floors = meter.floors()
    if args.json:
        print(json.dumps(asdict(floors)))
        return
    print(f"threads          {floors.threads}")
    print(f"read bandwidth   {floors.read_gb_s:8.1f} GB/s")
    print(f"bf16 products    {floors.bf16_gflop_s:8.0f} GFLOP/s")
    print(f"fp32 products    {floors.fp32_gflop_s:8.0f} GFLOP/s")


if __name__ == "__main__":
    main()
