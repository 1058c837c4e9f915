"""Sides and scripted answers for the gate's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gate.models import Side

CALM_MS = 3.0


def side(name: str, folder: Path | str) -> Side:
    return Side(name=name, revision=None, commit=None, folder=str(folder), python=sys.executable)


def calm() -> float:
    return CALM_MS


class ScriptedWall:
    """Answers the wall script from a noise model. ``slower``: per metric, the head's slow-down."""

    def __init__(self, slower: Mapping[str, float] | None = None, sd: float = 0.02, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._slower = dict(slower or {})
        self._sd = sd
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(
        self, side: Side, script: str, specification: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        assert script == "wall"
        self.asked.append((side.name, specification))
        metrics = {"ttft_ms": 100.0, "itl_ms": 8.0, "output_tok_s": 300.0}
        for name in metrics:
            change = 1.0 + self._slower.get(name, 0.0) if side.name == "head" else 1.0
            change = 1.0 / change if name == "output_tok_s" else change
            metrics[name] *= change * float(np.exp(self._rng.normal(0.0, self._sd)))
        return {"turns": {name: [value] for name, value in metrics.items()}}


Control = Callable[[], float]
