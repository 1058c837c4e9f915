"""Rates that change with time: stages and ramps, as one cumulative function and its inverse.

Every open arrival process is drawn at unit rate and mapped through the inverse of the expected number of
arrivals (time rescaling). So a ramp of Poisson arrivals is an exact inhomogeneous Poisson process, and a ramp
of constant arrivals has its next request exactly when the integral of the rate reaches the next whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from workloads.fields import Spec

Floats = NDArray[np.float64]


class Stage(Spec):
    """``seconds`` at ``rate`` requests per second, or a ramp from ``rate`` to ``end_rate`` by elapsed
    time."""

    rate: float = Field(ge=0, allow_inf_nan=False)
    seconds: float = Field(gt=0, allow_inf_nan=False)
    end_rate: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    shape: Literal["linear", "exponential"] = "linear"

    @model_validator(mode="after")
    def _exponential_needs_two_rates(self) -> Stage:
        if self.shape == "exponential" and not (self.rate > 0 and (self.end_rate or 0) > 0):
            raise ValueError("an exponential ramp needs rate and end_rate above 0")
        return self

    @property
    def last_rate(self) -> float:
        return self.rate if self.end_rate is None else self.end_rate

    @property
    def expected(self) -> float:
        """Expected number of arrivals."""
        if self.shape == "exponential" and self.last_rate != self.rate:
            return self.seconds * (self.last_rate - self.rate) / float(np.log(self.last_rate / self.rate))
        return self.seconds * (self.rate + self.last_rate) / 2

    def times(self, expected: Floats) -> Floats:
        """Seconds after the stage's start at which the expected number of arrivals reaches ``expected``."""
        start, end = self.rate, self.last_rate
        if start == end:
            return expected / start
        if self.shape == "exponential":
            growth = np.log(end / start) / self.seconds
            curved: Floats = np.log1p(expected * growth / start) / growth
            return curved
        slope = (end - start) / self.seconds
        # Stable form of the root of slope/2·t² + start·t = expected: no difference of large numbers.
        inside = np.maximum(start * start + 2 * slope * expected, 0.0)
        times: Floats = 2 * expected / (start + np.sqrt(inside))
        return times


def profile_times(stages: Sequence[Stage], expected: Floats) -> Floats:
    """Seconds from the start at which the cumulated expectation reaches ``expected`` (ascending, unit rate).

    After the last stage its last rate goes on; when that is 0 nothing more comes (infinity).
    """
    times = np.full(len(expected), np.inf)
    done, begin = 0.0, 0.0
    for stage in stages:
        mine = (expected >= done) & (expected < done + stage.expected)
        times[mine] = begin + stage.times(expected[mine] - done)
        done, begin = done + stage.expected, begin + stage.seconds
    beyond = expected >= done
    last = stages[-1].last_rate
    if last > 0:
        times[beyond] = begin + (expected[beyond] - done) / last
    return times


def profile_seconds(stages: Sequence[Stage]) -> float:
    return sum(stage.seconds for stage in stages)
