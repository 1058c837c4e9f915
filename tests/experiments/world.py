"""A simulated machine for the sweeper: planted effects, noise, faults, and a clock that only runs advance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import CellOutcome, SweepProgress
from experiments.design import level_text
from experiments.metric_info import GOOD, OFFERED, WINDOW
from experiments.models import Cell, SweepResult
from experiments.request import SweepRequest, make_spec
from experiments.spec import Load, SweepSpec
from experiments.sweep import Sweep, new_sweep
from workbench.calibrate import Capacity

REQUESTS = 40


@dataclass
class Store:
    root: Path


@dataclass
class World:
    """Answers as an engine would. ``effects``: level to the factor on every latency; ``itl_p99`` 100 ms at
    1.0."""

    effects: Mapping[str, float] = field(default_factory=dict)
    sd: float = 0.02
    seconds: float = 10.0
    faults: dict[str, list[Exception | CellOutcome]] = field(default_factory=dict)
    """Level to what its next runs do instead of measuring, in turn."""
    outputs: Callable[[Cell, int], str] = lambda cell, index: f"{cell.nonce}/{index}"
    interrupt_at: int | None = None
    """Run number that Ctrl-C hits."""
    seed: int = 0
    now: float = 0.0
    control_ms: float = 3.0
    seen: list[tuple[Cell, Load]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.now

    def control(self) -> float:
        return self.control_ms

    def probe(self) -> Capacity:
        self.now += 12.0
        return Capacity(run="calibration", request_s=2.0, tail_s=1.0, wall_s=12.0, busy_s=8.0)

    def __call__(self, cell: Cell, load: Load) -> CellOutcome:
        if self.interrupt_at is not None and len(self.seen) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.seen.append((cell, load))
        self.now += self.seconds
        name = level_text(cell.level)
        queue = self.faults.get(name, [])
        if queue:
            fault = queue.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        slow = self.effects.get(name, 1.0) * math.exp(float(self._rng.normal(0.0, self.sd)))
        # The workload's luck: the same for all runs of a block.
        luck = math.exp(float(np.random.default_rng(cell.seed).normal(0.0, 0.3)))
        good = REQUESTS if slow < 1.2 else REQUESTS // 2
        return CellOutcome(
            state="DONE",
            run=f"run-{len(self.seen)}",
            metrics={
                "itl_p99": 100.0 * slow * luck,
                "chat/stall_p90": 120.0 * slow * luck,
                "itl_p50": 20.0 * slow * luck,
                "ttft_p50": 300.0 / slow * luck,
                "output_tok_s": 500.0 / luck,
                "goodput_ratio": good / REQUESTS,
                "goodput_s": good / 20.0,
                GOOD: float(good),
                OFFERED: float(REQUESTS),
                WINDOW: 20.0,
            },
            outputs={
                str(i): hashlib.sha256(self.outputs(cell, i).encode()).hexdigest() for i in range(REQUESTS)
            },
            context={"target": {"echo": {"block_size": 16}}, "machine": {"cpu": "simulated", "cores": 2}},
        )


def spec_of(**options: Any) -> SweepSpec:
    """A sweep of chunk_size, seed 1, unless ``options`` say otherwise."""
    engine = options.pop("engine", {})
    given = {
        "param": "chunk_size",
        "seed": 1,
        "request_rate": "2",
        "num_prompts": 40,
        "confirm": 0,
        **options,
    }
    return make_spec(SweepRequest(**given), engine)


def run(world: World, root: Path, spec: SweepSpec, progress: SweepProgress | None = None) -> SweepResult:
    return resume(world, new_sweep(spec, root, {}), progress)


def resume(world: World, folder: Path, progress: SweepProgress | None = None) -> SweepResult:
    """Go on with (or start) the sweep in ``folder``."""
    return Sweep(folder, world, progress, probe=world.probe, control=world.control, clock=world.clock).run()
