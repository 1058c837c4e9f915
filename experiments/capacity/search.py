"""Noisy bisection: where does a rate stop to pass, when the same rate may pass today and miss tomorrow?

Probabilistic bisection (Horstein 1963; Waeber, Frazier, Henderson 2013): a posterior over the capacity
on a grid of log rates, its median is the next rate to try, every result moves it by Bayes' rule.
Near the capacity a run passes by chance, so the model is a rising curve of unknown steepness, not a step; a
single odd run never cuts half of the range off for good. Rates are fractions, not whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Where = Literal["rate", "below the lowest tried", "above the highest tried", "unknown"]

STEEPNESS = ((0.01, 0.5), (0.03, 0.3), (0.1, 0.15), (0.25, 0.05))
"""Width of the step from passing to missing, in log rate, and how likely it is before anything is known: the
edge of a queue's capacity is steep."""
LAPSE = 0.03
"""Share of runs that go wrong whatever the rate: a machine's hiccup."""
BEYOND = 0.7
"""How far past both ends the capacity may lie (log rate), so that "outside" is an answer too."""
CONFIDENT = 0.95
_POINTS = 1201


@dataclass(frozen=True)
class Answer:
    """``where`` "rate": the capacity with its interval; else why there is no number."""

    where: Where
    rate: float | None = None
    low: float | None = None
    high: float | None = None


class CapacitySearch:
    """Ask :meth:`next_rate`, run it, :meth:`tell` the result; ends when :attr:`done`."""

    def __init__(self, lowest: float, highest: float, tolerance: float) -> None:
        """Rates in requests per second; ``tolerance``: share on either side at which the answer is good
        enough."""
        self._low, self._high = math.log(lowest), math.log(highest)
        self._tolerance = tolerance
        self._grid = np.linspace(self._low - BEYOND, self._high + BEYOND, _POINTS)
        self._log = np.log([[share] * _POINTS for _, share in STEEPNESS])
        self._rates: list[tuple[float, bool]] = []

    def tell(self, rate: float, passed: bool) -> None:
        """A run at ``rate`` passed or missed."""
        self._rates.append((rate, passed))
        x = math.log(rate)
        for row, (width, _) in enumerate(STEEPNESS):
            chance = LAPSE / 2 + (1.0 - LAPSE) / (1.0 + np.exp(np.clip((x - self._grid) / width, -60, 60)))
            self._log[row] += np.log(chance if passed else 1.0 - chance)

    def next_rate(self) -> float:
        """The posterior's median, inside the range; near the end of the search a little to either side, where
        a run says more about the edges of the interval."""
        low, middle, high = self._quantiles(0.25, 0.5, 0.75)
        tried = sum(1 for rate, _ in self._rates if abs(math.log(rate) - middle) < 0.005)
        x = middle if tried == 0 else (low if tried % 2 else high)
        return round(math.exp(min(max(x, self._low), self._high)), 4)

    @property
    def done(self) -> bool:
        return self.answer().where in ("below the lowest tried", "above the highest tried") or self._narrow()

    def answer(self) -> Answer:
        """What is known so far. A rate needs a run that passed and one that missed."""
        mass = self._posterior()
        if float(mass[self._grid < self._low].sum()) >= CONFIDENT:
            return Answer("below the lowest tried")
        if float(mass[self._grid > self._high].sum()) >= CONFIDENT:
            return Answer("above the highest tried")
        results = {passed for _, passed in self._rates}
        if results != {True, False}:
            return Answer("unknown")
        low, middle, high = (math.exp(x) for x in self._quantiles(0.025, 0.5, 0.975))
        return Answer("rate", middle, low, high)

    def _narrow(self) -> bool:
        if {passed for _, passed in self._rates} != {True, False}:
            return False
        low, high = self._quantiles(0.025, 0.975)
        return high - low <= 2.0 * math.log1p(self._tolerance)

    def _posterior(self) -> Floats:
        weights = np.exp(self._log - self._log.max())
        mass: Floats = weights.sum(axis=0) / weights.sum()
        return mass

    def _quantiles(self, *shares: float) -> list[float]:
        cumulative = np.cumsum(self._posterior())
        return [float(np.interp(share, cumulative, self._grid)) for share in shares]
