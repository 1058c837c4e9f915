"""Noise models for the statistics: what a machine does to runs that should all be equal. Seeded, one draw a
run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MEASURED = Path(__file__).parent / "data" / "aa_step_ms.txt"


def synthetic(
    rng: np.random.Generator, runs: int, *, sd: float, walk: float, spikes: float, spike_sd: float = 0.25
) -> NDArray[np.float64]:
    """Log noise of ``runs`` runs in order: independent noise, a random walk (drift), and rare one-sided
    spikes."""
    noise = rng.normal(0.0, sd, runs) + np.cumsum(rng.normal(0.0, walk, runs))
    hit = rng.random(runs) < spikes
    return noise + hit * np.abs(rng.normal(0.0, spike_sd, runs))


def middling(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    return synthetic(rng, runs, sd=0.03, walk=0.01, spikes=0.05)


def bad(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    return synthetic(rng, runs, sd=0.06, walk=0.02, spikes=0.10)


def quiet(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    return synthetic(rng, runs, sd=0.02, walk=0.003, spikes=0.02)


def drifting(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    """A machine that gets 1 % slower with every run, in one direction: twice as slow after 70 runs."""
    return np.arange(runs) * 0.01 + rng.normal(0.0, 0.01, runs)


def spiky(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    """A calm machine on which one run in ten is hit by something else."""
    return synthetic(rng, runs, sd=0.02, walk=0.0, spikes=0.10)


def measured(rng: np.random.Generator, runs: int) -> NDArray[np.float64]:
    """200 real runs of one program, resampled in stretches of 20 so that their autocorrelation and drift
    survive."""
    logs = np.log(np.loadtxt(MEASURED))
    stretches = []
    for _ in range(runs // 20 + 1):
        start = int(rng.integers(0, logs.size - 20))
        stretches.append(logs[start : start + 20])
    return np.concatenate(stretches)[:runs] - logs.mean()
